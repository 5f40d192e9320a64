"""Renders conversations with chat templates through Python's jinja2, for golden/chat.

    python3 golden/make-chat.py FOLDER [NAME ..]

FOLDER holds templates as NAME.jinja; those named are copied to golden/chat/templates, and what they
give is written to golden/chat/rendered.json. Without names nothing is copied, every template of the
folder is used, and the result goes to standard output: for a comparison that is not kept.

The engine is set up as `transformers` does it in `apply_chat_template`: a sandbox without mutation,
trim_blocks and lstrip_blocks, loop controls, a `generation` block that is only a scope, `tojson`
without HTML escapes, `raise_exception`, and `strftime_now`, here of a fixed time.
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2025, 1, 2, 3, 4, 5)
BOS, EOS = "<|begin|>", "<|end|>"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_scope")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _scope(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    body = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": body}


TOOLS = [
    function(
        "get_weather",
        "Tells the weather of a place, \"as is\" <now> & here.\nNot tomorrow's.",
        {
            "place": {"type": "string", "description": "A town, e.g. Zürich or 京都"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": None},
        },
        ["place"],
    ),
    function("add", "Adds.", {"a": {"type": "number", "minimum": -1.5}, "b": {"type": "number"}}, []),
]


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


SYSTEM = {"role": "system", "content": "You are terse.  "}
NASTY = "  <b>\"quotes\" & 'more'</b>\\n \t{{ x }} {% if %}\r\n\u00a0naïve 😀 e\u0301 \u2028 \x1f\x7f end\n\n"

CONVERSATIONS = {
    "user": [user("Hello!")],
    "system": [SYSTEM, user("What is 2 + 2?")],
    "turns": [
        SYSTEM,
        user("One?"),
        assistant("1"),
        user("Two?\n"),
        assistant("\n2 "),
        user("Three?"),
    ],
    "answered": [user("One?"), assistant("<think>\nCount.\n</think>\n\n1")],
    "thoughts": [
        user("One?"),
        assistant("1", reasoning_content="\nStart at one.\n"),
        user("Two?"),
        assistant("<think>\none more\n</think>\n\n2"),
        user("Three?"),
        assistant("3", reasoning_content="Again."),
    ],
    "nasty": [{"role": "system", "content": NASTY}, user(NASTY), assistant(NASTY), user("ok?")],
    "tools": [SYSTEM, user("Weather in Zürich?")],
    "tool history": [
        SYSTEM,
        user("Weather in Zürich?"),
        assistant("", tool_calls=[call("get_weather", {"place": "Zürich", "unit": "celsius"})]),
        tool('{"degrees": 21.5, "sky": "bewölkt"}', name="get_weather"),
        assistant("21.5 °C and cloudy."),
        user("And in 京都?"),
        assistant("", tool_calls=[call("get_weather", {"place": "京都"})]),
        tool("<tool_response>{}</tool_response>", name="get_weather"),
        assistant("No idea.", reasoning_content="The tool gave nothing."),
        user("Then add 1 and 2e20, and nothing."),
        assistant("I add.", tool_calls=[call("add", {"a": 1, "b": 2e20, "c": [None, True, 0.1]})]),
        tool("2e20", name="add"),
    ],
    "two calls": [
        user("Both?"),
        assistant(
            "Both.",
            tool_calls=[call("add", {"a": -0.00001, "b": []}), call("get_weather", {"place": "a\"b\\c"})],
        ),
        tool("1", name="add"),
        tool("2", name="get_weather"),
    ],
    "assistant first": [assistant("Hi."), user("Hello.")],
    "two users": [user("a"), user("b")],
    "none": [],
}

PLAIN = {"add_generation_prompt": True}
WITHOUT = {"add_generation_prompt": False}
THINK = {"add_generation_prompt": True, "enable_thinking": True}
NO_THINK = {"add_generation_prompt": True, "enable_thinking": False}
TOOLED = {"add_generation_prompt": True, "tools": TOOLS}
TOOLED_NO_THINK = {**TOOLED, "enable_thinking": False}
OPTIONS = {
    "user": [PLAIN, WITHOUT, THINK, NO_THINK],
    "turns": [PLAIN, NO_THINK],
    "answered": [PLAIN, WITHOUT],
    "thoughts": [PLAIN, WITHOUT],
    "tools": [TOOLED],
    "tool history": [TOOLED, TOOLED_NO_THINK],
    "two calls": [TOOLED],
}

# What templates write, piece by piece. The variables are those of VARIABLES.
VARIABLES = {
    "text": " a, b,c  d\n",
    "word": "straße Éa",
    "list": [3, 1, 2],
    "rows": [{"k": "x", "n": 2}, {"k": "y", "n": 1}, {"k": "x", "n": None}],
    "map": {"b": 1, "a": [True, None], "items": "own"},
    "nothing": None,
    "yes": True,
    "number": 1.5,
    "nasty": NASTY,
}
EXPRESSIONS = """
text.strip() + '|'
text.lstrip() + '|'
text.rstrip() + '|'
text.strip(' a\\n') + '|'
text | trim ~ '|'
'xxaxx' | trim('x')
'\\x1c\\u00a0 a\\u2003\\x1f'.strip()
'\\x1c\\u00a0 a\\u2003\\x1f' | trim
text.split(',')
text.split()
text.split(None, 1)
text.split(',', 1)
text.rsplit(',', 1)
text.rsplit(None, 2)
''.split()
''.split(',')
'a'.split('')
'a\\nb\\r\\nc\\u2028d\\x0be\\n'.splitlines()
'a\\nb\\r\\nc\\n'.splitlines(true)
'</think>a</think>b'.split('</think>')[-1].lstrip('\\n')
'a</think>b'.split('</think>')[0].rstrip('\\n').split('<think>')[-1]
word.upper()
word.lower()
word.title()
word.capitalize()
word | upper
word | title
word | capitalize
'ab'.startswith('a')
'ab'.startswith(('x', 'a'))
'ab'.endswith(('x', 'b'))
'ab'.endswith('')
'aXbXc'.replace('X', '--')
'aXbXc'.replace('X', '-', 1)
'ab'.replace('', '-')
'ab' | replace('a', 'c')
'-'.join(['a', 'b'])
'-'.join([1])
['a', 1, none] | join('-')
rows | map(attribute='k') | join(', ')
['abcb'.find('b'), 'abcb'.rfind('b'), 'abcb'.find('x'), 'éb'.find('b')]
'abcb'.index('x')
['abcb'.count('b'), 'ab'.count('')]
['a'.ljust(3) + '|', 'a'.rjust(3, '.'), 'a'.center(4, '*'), 'ab'.center(5, '*'), '-7'.zfill(4)]
['a=b=c'.partition('='), 'a=b=c'.rpartition('='), 'a'.partition('=')]
['abc'.removeprefix('a'), 'abc'.removesuffix('bc'), 'abc'.removesuffix('x')]
['12'.isdigit(), 'a1'.isalnum(), 'a'.isalpha(), ' '.isspace(), ''.isdigit(), 'A'.isupper(), 'a'.islower()]
'{} and {}'.format('a', 1)
'{0}{1}{0}'.format('a', 'b')
'%s' | format('x')
map.items() | list
map.keys() | list
map.values() | list
map | items | list
[map.get('b'), map.get('x'), map.get('x', 5)]
[map['b'], map.b, map['x'] is defined]
map | dictsort
[map | length, text | length, 'é😀' | length]
map | list
{} | length
list[::-1]
list[-2:]
list[:-1]
list[5:]
text[::-1] | trim
'héllo'[1:3]
list | sort
list | sort(reverse=true)
rows | sort(attribute='k') | map(attribute='k') | list
list | reverse | list
'abc' | reverse
[list | first, list | last, list | max, list | min, list | sum]
list + [4]
list * 2
'ab' * 3
[3 in list, 'x' in map, 'b' in map, 'a' in text, 'x' not in list]
rows | selectattr('k', 'equalto', 'x') | list | length
rows | selectattr('n') | list | length
rows | rejectattr('k', 'equalto', 'x') | map(attribute='n') | list
rows | selectattr('n', 'none') | list | length
rows | groupby('k') | length
list | select('odd') | list
list | map('string') | list
list | unique | list
list | batch(2) | list
[list is iterable, 'a' is iterable, map is iterable, nothing is iterable, 1 is iterable, missing is iterable]
[list is sequence, 'a' is sequence, map is sequence, nothing is sequence, 1 is sequence]
[list is mapping, map is mapping, 'a' is mapping]
['a' is string, 1 is string, nothing is string]
[1 is number, 1.5 is number, yes is number, 'a' is number]
[1 is integer, 1.5 is integer, yes is integer]
[1 is float, 1.5 is float]
[yes is boolean, 1 is boolean, nothing is boolean]
[yes is true, 1 is true, yes is false, false is false]
[nothing is none, missing is none, missing is defined, missing is undefined]
[1 is sameas 1, yes is sameas true]
[2 is even, 2 is odd, 4 is divisibleby 2]
['a' is in ['a'], 1 is eq 1, 1 is lt 2]
missing
[missing | default('d'), nothing | default('d'), '' | default('d', true), missing or 'e']
missing.more
missing + 'a'
'a' + 1
'a' ~ 1 ~ none ~ true
1 + true
[not missing, not nothing, not [], not {}, not '', not 0]
[nothing or 'a', 'a' and 'b', '' and 'b']
[7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 / 2, 2 ** 10]
[1 == 1.0, 'a' < 'b', [1] == [1], {'a': 1} == {'a': 1}]
1 if yes else 2
1 if missing
[nothing, yes, [nothing, yes, 'a', "it's", 1.5], {'a': none}]
number
1e20
1e16
[1e15, 0.0001, 3.0, 100000.0 * 10, 1e20, 0.00001]
[nasty, "it's", 'a\"', "it's \"", [[]], {}, (1,)]
0.00001
-1.5e-7
[1e20 | string, 0.00001 | string, true | string]
['3' | int, '3.7' | float, 3.9 | int, '7' | int + 1]
[3.14159 | round(2), 2.5 | round, 7 | round]
-3 | abs
'line\\nother' | indent(2)
'line\\nother' | indent(2, true)
'<a>' | e
'<a>' | escape
nasty | tojson
map | tojson
map | tojson(indent=2)
map | tojson(indent=0)
map | tojson(indent='--')
map | tojson(sort_keys=true)
map | tojson(separators=(',', ':'))
word | tojson(ensure_ascii=true)
'😀' | tojson(ensure_ascii=true)
[1, 1.0, 1e20, 1e-7, 1e16, -0.0, true, none] | tojson
[[] | tojson(indent=2), {} | tojson(indent=2), [[]] | tojson(indent=2)]
{1: 'a', none: 'b', true: 'c'} | tojson
missing | tojson
[range(3) | list, range(1, 7, 2) | list, range(3, 0, -1) | list]
dict(a=1, b='x')
namespace(a=1).a
strftime_now('%Y-%m-%d %H:%M:%S %j %a %A %b %B %d %y %p %I %%')
strftime_now('%-d.%-m.')
raise_exception('No ' + 'way')
nothing.strip()
list.append(4)
map.update({'x': 1})
''.__class__
messages is defined
['a', 'b'] | join
'a,b' | list
['abc'[0], 'abc'[-1], 'abc'[9] is defined]
[list[9] is defined, list['x'] is defined]
["a'b", 'a"b', 'a\\tb', '\\\\']
'a' 'b'
1_000
[(1, 2)[0], (1,) | length, ()]
list | tojson | length
rows[0]['k'] ~ rows[-1].k
rows | map(attribute='n', default=0) | list
rows | map('length') | list
'x' if list | length > 2 else 'y'
'%05.1f|%5s|%-5s|' | format(3.14159, 'a', 'b')
'a-b' | replace('-', '')
list is not string and list is iterable
'A' | lower == 'a'
""".strip().split("\n")
STATEMENTS = [
    "{% for x in list %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in list %}{{ loop.first }}{{ loop.index0 }}{{ loop.revindex }}{% endfor %}",
    "{% for x in list if x > 1 %}{{ x }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in map | dictsort %}{{ k }};{% endfor %}",
    "{% for k in map %}{{ k }};{% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in missing %}a{% endfor %}|",
    "{% set x = 1 %}{% for y in list %}{% set x = y %}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for y in list %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}",
    "{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}",
    "{% set a, b = 1, 2 %}{{ a + b }}",
    "{% macro m(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(2, b='y') }}",
    "{%- macro m(x) -%}\n  {{ x }}\n{%- endmacro -%}\n{{ m(1) }}",
    "{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(5) }}",
    "{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q is defined }}",
    "a\n  {%- generation -%}  b  {%- endgeneration %}\n  c",
    "a\n  {% generation %}\n  b\n  {% endgeneration %}\nc",
    "  {% if yes %}\n  a\n  {% endif %}\nb\n\n",
    "  {%+ if yes %}\n  a\n  {%+ endif %}\nb",
    "{% if yes -%}\n  a\n  {%- endif %}\nb",
    "a {#- comment -#} b {# other #}\n c",
    "{# x #}\n{{ 'a' }}\n",
    "{% raw %}{{ x }}{% endraw %}",
    "{{ '{{' }}{{ '%}' }}",
    "{% with x = 3 %}{{ x }}{% endwith %}{{ x is defined }}",
    "{% call(x) m() %}{{ x }}{% endcall %}",
    "{% macro m() %}<{{ caller('q') }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
    "{% filter upper %}abc{% endfilter %}",
    "{% if messages %}a{% elif not yes %}b{% else %}c{% endif %}",
    "{% for x in list recursive %}{{ x }}{% endfor %}",
    "{% for a in rows %}{% for b in list %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set list = list[1:] %}{{ list }}",
    "{%- set x = [] -%}{%- set x = x + [1] -%}{{ x }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% unknown %}",
    "{{ 1 +",
    "{% if %}",
    "{% for x in list %}",
    "{{ x | no_such_filter }}",
    "{{ x is no_such_test }}",
    "{{ no_such_function() }}",
    "\r\na\r\n",
]


def render(template, conversation, options):
    variables = {"tools": None, "documents": None, "bos_token": BOS, "eos_token": EOS, **options}
    try:
        return {"text": template.render(messages=conversation, **variables)}
    except Exception as error:
        # Only `raise_exception` raises this very class.
        refused = type(error) is jinja2.exceptions.TemplateError
        return {"refused" if refused else "fails": f"{error}"}


def main(folder, names):
    paths = sorted(pathlib.Path(folder).glob("*.jinja"))
    sources = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    rows = []
    for name in names or sources:
        template = environment().from_string(sources[name])
        for title, conversation in CONVERSATIONS.items():
            for options in OPTIONS.get(title, [PLAIN]):
                row = {"template": name, "conversation": title}
                row["options"] = {**options, "tools": "tools" in options}
                rows.append({**row, **render(template, conversation, options)})
    pieces = []
    for source in ["{{ " + expression + " }}" for expression in EXPRESSIONS] + STATEMENTS:
        try:
            result = render(environment().from_string(source), [], VARIABLES)
        except jinja2.exceptions.TemplateError as error:
            result = {"fails": str(error)}
        pieces.append({"source": source, **result})
    golden = {
        "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()),
        "bos": BOS,
        "eos": EOS,
        "tools": TOOLS,
        "conversations": CONVERSATIONS,
        "rendered": rows,
        "variables": VARIABLES,
        "pieces": pieces,
    }
    text = json.dumps(golden, ensure_ascii=False, indent=1) + "\n"
    if not names:
        golden["sources"] = sources
        print(json.dumps(golden, ensure_ascii=False))
        return
    target = pathlib.Path(__file__).parent / "chat"
    (target / "templates").mkdir(parents=True, exist_ok=True)
    for name in names:
        (target / "templates" / f"{name}.jinja").write_text(sources[name], encoding="utf-8")
    (target / "rendered.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
