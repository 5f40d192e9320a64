"""Compiles CUDA sources with the run-time compiler: no toolkit, no GPU.

Argument: the library. Standard input: a JSON list of jobs, each with `name`, `source` (a path) and
`options`. Standard output: a JSON list with `ptx` (null after an error) and `log` of each job.
"""

import ctypes
import json
import sys


def check(code, what):
    if code != 0:
        sys.exit(f"{what} failed with code {code}")


def text(library, program, kind):
    size = ctypes.c_size_t()
    check(getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)), kind)
    buffer = ctypes.create_string_buffer(size.value)
    check(getattr(library, f"nvrtcGet{kind}")(program, buffer), kind)
    return buffer.value.decode()


def compile_one(library, job):
    program = ctypes.c_void_p()
    with open(job["source"], "rb") as file:
        source = file.read()
    name = job["name"].encode()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None), "create")
    options = [option.encode() for option in job["options"]]
    array = (ctypes.c_char_p * len(options))(*options)
    code = library.nvrtcCompileProgram(program, len(options), array)
    result = {"log": text(library, program, "ProgramLog"), "ptx": None}
    if code == 0:
        result["ptx"] = text(library, program, "PTX")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return result


def main():
    library = ctypes.CDLL(sys.argv[1])
    json.dump([compile_one(library, job) for job in json.load(sys.stdin)], sys.stdout)


main()
