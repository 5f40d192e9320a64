//! What a line of a chat means: a message for the model, or a command.

use fucina::llm::sampler::SamplerConfig;

/// A line, understood.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Line {
    /// Nothing but blanks.
    Empty,
    Message(String),
    Command(Command),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Command {
    Help,
    Clear,
    /// Show the system prompt, or set it; an empty one takes it away.
    System(Option<String>),
    Undo,
    Retry,
    Save(String),
    Load(String),
    Stats,
    /// Show the settings, or change one.
    Set(Option<(String, String)>),
    Exit,
}

/// What `/help` shows.
pub(super) const HELP: &str = "\
/help            this list
/clear, /reset   forget the conversation; the system prompt stays
/system [TEXT]   show the system prompt, or set it; /system \"\" takes it away
/undo            take back the last message and its answer
/retry           answer the last message again
/save FILE       write the conversation as JSON
/load FILE       go on with a conversation that was saved
/stats           tokens held, size of the context, speed
/set [NAME X]    show the settings, or change one, as in: /set temp 0.5
/exit, /quit     end; so does Ctrl-D
//TEXT           send a message that begins with /

A line that ends with \\ goes on in the next one, and so does a text that begins with \"\"\" until
a line that ends with \"\"\"; what stands between is a message, whatever it is. Ctrl-C stops an answer, and empties the line at the prompt.";

/// Understands a line, or says in a sentence why not.
pub(super) fn parse(text: &str) -> Result<Line, String> {
    let (blanks, rest) = text.split_at(text.len() - text.trim_start().len());
    let Some(command) = rest.strip_prefix('/') else {
        return Ok(if rest.is_empty() { Line::Empty } else { Line::Message(text.to_owned()) });
    };
    if command.starts_with('/') {
        return Ok(Line::Message(format!("{blanks}{command}")));
    }
    let (name, rest) = match command.split_once(char::is_whitespace) {
        Some((name, rest)) => (name, rest.trim()),
        None => (command.trim_end(), ""),
    };
    let bare = |command| match rest {
        "" => Ok(command),
        _ => Err(format!("/{name} takes nothing after it; a message that begins with / needs //")),
    };
    let file = || match rest {
        "" => Err(format!("/{name} needs the name of a file after it")),
        path => Ok(path.to_owned()),
    };
    let command = match name {
        "help" | "?" => bare(Command::Help),
        "clear" | "reset" => bare(Command::Clear),
        "undo" => bare(Command::Undo),
        "retry" => bare(Command::Retry),
        "stats" => bare(Command::Stats),
        "exit" | "quit" | "bye" => bare(Command::Exit),
        "save" => file().map(Command::Save),
        "load" => file().map(Command::Load),
        "system" => Ok(Command::System(match rest {
            "" => None,
            "\"\"" => Some(String::new()),
            text => Some(text.to_owned()),
        })),
        "set" => pair(rest).map(Command::Set),
        _ => Err(format!(
            "there is no command /{name}; /help lists them, and //{name} sends it as a message"
        )),
    };
    command.map(Line::Command)
}

/// The name and the value after `/set`.
fn pair(rest: &str) -> Result<Option<(String, String)>, String> {
    let words: Vec<&str> = rest.split_whitespace().collect();
    match words[..] {
        [] => Ok(None),
        [name, value] => Ok(Some((name.to_owned(), value.to_owned()))),
        _ => Err("/set takes a name and a value, as in: /set temp 0.5".to_owned()),
    }
}

/// What `/set` changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Settings {
    pub(super) sampling: SamplerConfig,
    /// Most tokens of an answer.
    pub(super) max_tokens: Option<usize>,
}

impl Settings {
    /// The settings with one changed, or a sentence on what is wrong.
    pub(super) fn with(mut self, name: &str, value: &str) -> Result<Self, String> {
        let config = &mut self.sampling;
        match name.trim_start_matches('-').replace('_', "-").as_str() {
            "temp" | "temperature" => config.temperature = number(name, value)?,
            "top-k" => config.top_k = number(name, value)?,
            "top-p" => config.top_p = number(name, value)?,
            "min-p" => config.min_p = number(name, value)?,
            "repeat-penalty" => config.repeat_penalty = number(name, value)?,
            "presence-penalty" => config.presence_penalty = number(name, value)?,
            "frequency-penalty" => config.frequency_penalty = number(name, value)?,
            "repeat-last-n" => config.penalty_last_n = number(name, value)?,
            "seed" => config.seed = number(name, value)?,
            "n" | "max-tokens" if value == "none" => self.max_tokens = None,
            "n" | "max-tokens" => self.max_tokens = Some(number(name, value)?),
            _ => return Err(format!("there is no setting {name}; /set lists them")),
        }
        config.validate().map_err(|error| error.to_string())?;
        Ok(self)
    }

    /// The settings for people, one a line.
    pub(super) fn list(&self) -> String {
        let config = &self.sampling;
        let rows = [
            ("temp", config.temperature.to_string()),
            ("top-k", config.top_k.to_string()),
            ("top-p", config.top_p.to_string()),
            ("min-p", config.min_p.to_string()),
            ("repeat-penalty", config.repeat_penalty.to_string()),
            ("presence-penalty", config.presence_penalty.to_string()),
            ("frequency-penalty", config.frequency_penalty.to_string()),
            ("repeat-last-n", config.penalty_last_n.to_string()),
            ("seed", config.seed.to_string()),
            ("max-tokens", self.max_tokens.map_or_else(|| "none".into(), |max| max.to_string())),
        ];
        let lines: Vec<String> =
            rows.iter().map(|(name, value)| format!("{name:17} {value}")).collect();
        lines.join("\n")
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} cannot be {value:?}; a number is expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> Command {
        match parse(text) {
            Ok(Line::Command(command)) => command,
            other => panic!("{text:?} is {other:?}"),
        }
    }

    #[test]
    fn a_line_is_a_message_unless_it_begins_with_one_slash() {
        let message = |text: &str| Ok(Line::Message(text.to_owned()));
        assert_eq!(parse("hello /help"), message("hello /help"));
        assert_eq!(parse("  two\nlines "), message("  two\nlines "), "blanks are kept");
        assert_eq!(parse("//etc/passwd?"), message("/etc/passwd?"));
        assert_eq!(parse("///"), message("//"));
        assert_eq!(parse(" \t//a\n//b "), message(" \t/a\n//b "), "the first slash alone goes");
        for blank in ["", "  ", "\n\t"] {
            assert_eq!(parse(blank), Ok(Line::Empty));
        }
    }

    #[test]
    fn every_command_is_understood() {
        assert_eq!(command("/help"), Command::Help);
        assert_eq!(command("  /reset "), command("/clear"));
        assert_eq!(command("/system"), Command::System(None));
        assert_eq!(command("/system  be\nbrief "), Command::System(Some("be\nbrief".into())));
        assert_eq!(command("/system \"\""), Command::System(Some(String::new())));
        assert_eq!(command("/save a b.json"), Command::Save("a b.json".into()));
        assert_eq!(command("/load x"), Command::Load("x".into()));
        assert_eq!(command("/set"), Command::Set(None));
        assert_eq!(command("/set temp 1"), Command::Set(Some(("temp".into(), "1".into()))));
        assert_eq!([command("/undo"), command("/retry")], [Command::Undo, Command::Retry]);
        assert_eq!([command("/stats"), command("/quit")], [Command::Stats, Command::Exit]);
        // Whatever the help lists exists.
        for line in HELP.lines().filter(|line| line.starts_with('/') && !line.starts_with("//")) {
            for name in line.split("  ").next().unwrap().split(", ") {
                let name = name.replace("[TEXT]", "").replace("[NAME X]", "");
                command(&name);
            }
        }
    }

    #[test]
    fn a_wrong_command_is_a_sentence_and_not_a_message() {
        for (text, words) in [
            ("/hlep", "/help lists"),
            ("/", "no command /;"),
            ("/undo all", "takes nothing"),
            ("/save", "name of a file"),
            ("/load  ", "name of a file"),
            ("/set temp", "a name and a value"),
            ("/set temp 1 2", "a name and a value"),
        ] {
            let sentence = parse(text).unwrap_err();
            assert!(sentence.contains(words), "{sentence}");
        }
    }

    #[test]
    fn settings_change_one_by_one_and_only_to_what_is_allowed() {
        let settings = Settings { sampling: SamplerConfig::GREEDY, max_tokens: None };
        let with = |name: &str, value: &str| settings.with(name, value);
        assert_eq!(with("temp", "0.5").unwrap().sampling.temperature, 0.5);
        assert_eq!(with("--top_k", "7").unwrap().sampling.top_k, 7);
        assert_eq!(with("n", "9").unwrap().max_tokens, Some(9));
        assert_eq!(with("n", "9").unwrap().with("max-tokens", "none").unwrap().max_tokens, None);
        for (name, value) in [("temp", "-1"), ("temp", "NaN"), ("top-p", "2"), ("seed", "x")] {
            assert!(with(name, value).is_err(), "{name} {value}");
        }
        assert!(with("tmp", "1").unwrap_err().contains("no setting tmp"));
        // What is listed can be set to what is listed.
        for line in settings.list().lines() {
            let (name, value) = line.split_once(' ').unwrap();
            assert_eq!(with(name, value.trim()), Ok(settings), "{line}");
        }
    }
}
