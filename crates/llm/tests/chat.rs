//! Several turns over one session give what one session with the whole conversation gives.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::ops::ControlFlow;

use fucina_gguf::File;
use fucina_llm::chat::{Chat, ChatEvent, ChatTemplate, Message, SpecialTexts};
use fucina_llm::sampler::{Sampler, SamplerConfig};
use fucina_llm::{Error, GenerateOptions, Model, SessionOptions, Stop, StopStrings};
use fucina_runtime::Runtime;
use fucina_testkit::repository_root;

const SOURCE: &str = "\
{%- for message in messages %}
{{ '[' + message.role + '] ' + message.content }}
{% endfor %}
{%- if add_generation_prompt %}[assistant] {% endif %}";

fn austen() -> Model {
    let rt = Runtime::builder().build().unwrap();
    let file = File::open(repository_root().join("crates/cli/assets/austen-q8_0.gguf")).unwrap();
    Model::load(&rt, &file, &|_, _| ()).unwrap()
}

fn chat(model: &Model) -> Chat<'_> {
    let template = ChatTemplate::new(SOURCE, SpecialTexts::default()).unwrap();
    Chat::new(model.session(&SessionOptions::default()).unwrap(), template)
}

fn greedy() -> Sampler {
    Sampler::new(SamplerConfig { temperature: 0.0, ..SamplerConfig::default() }).unwrap()
}

/// What the model says to `text`, as events and as the reply.
fn say(chat: &mut Chat<'_>, text: &str, tokens: usize) -> (String, usize, usize) {
    let mut streamed = String::new();
    let options = GenerateOptions::default().max_tokens(Some(tokens));
    let reply = chat
        .send(text, &mut greedy(), &options, &mut |event| {
            if let ChatEvent::Content(text) = event {
                streamed.push_str(text);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(reply.kept);
    assert_eq!(streamed, reply.message.content);
    (streamed, reply.reused, reply.generated.prompt_tokens)
}

#[test]
fn turns_over_one_session_say_what_a_fresh_session_says() {
    let model = austen();
    let mut chat = chat(&model);
    chat.set_system(Some("Speak as Jane Austen would."));
    for (turn, text) in ["It is a truth", "She was not at all", "Mr. Darcy"].iter().enumerate() {
        let mut fresh = self::chat(&model);
        fresh.set_messages(chat.messages().to_vec());
        let (said, reused, run) = say(&mut chat, text, 12);
        let (fresh_said, fresh_reused, fresh_run) = say(&mut fresh, text, 12);
        assert_eq!(said, fresh_said, "turn {turn}");
        assert_eq!((fresh_reused, fresh_run), (0, reused + run));
        assert!(turn == 0 || reused > 20, "turn {turn} reuses {reused}");
    }
    assert_eq!(chat.messages().len(), 7);
}

#[test]
fn what_does_not_fit_is_an_error_and_changes_nothing() {
    let model = austen();
    let mut chat = chat(&model);
    say(&mut chat, "It is a truth", 4);
    let before = chat.messages().to_vec();
    let long = "She was not at all. ".repeat(200);
    let options = GenerateOptions::default().max_tokens(Some(4));
    let error =
        chat.send(&long, &mut greedy(), &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { held: 0, context: 512, .. }), "{error}");
    assert_eq!(chat.messages(), before);
    let (_, reused, _) = say(&mut chat, "And then", 4);
    assert!(reused > 5);
}

#[test]
fn a_stop_string_ends_the_answer_and_is_no_part_of_it() {
    let model = austen();
    let mut first = chat(&model);
    let (whole, ..) = say(&mut first, "It is a truth", 16);
    let stop = &whole[whole.len() / 2..whole.len() / 2 + 4];
    let want = &whole[..whole.find(stop).unwrap()];
    let options =
        GenerateOptions::default().max_tokens(Some(16)).stop(StopStrings::new([stop]).unwrap());
    let mut second = chat(&model);
    let reply = second
        .send("It is a truth", &mut greedy(), &options, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!((&*reply.message.content, reply.generated.stop), (want, Stop::StopString));
    assert_eq!(second.messages(), [Message::user("It is a truth"), Message::assistant(want)]);
}
