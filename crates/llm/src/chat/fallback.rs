//! Templates for files without one, by the control tokens of their vocabulary.

use super::template::{ChatTemplate, SpecialTexts};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// A family: the control tokens that tell it, and its template.
const FAMILIES: &[(&[&str], &str)] = &[
    (&["<|im_start|>", "<|im_end|>"], CHATML),
    (&["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], LLAMA3),
    (&["<start_of_turn>", "<end_of_turn>"], GEMMA),
];

const CHATML: &str = "\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
";

const LLAMA3: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}
";

/// Gemma has no system role: its instructions begin the first message of the user.
const GEMMA: &str = "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = message.content | trim + '\\n\\n' -%}
{%- else -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- ns.system + message.content | trim + '<end_of_turn>\\n' }}
{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<start_of_turn>model\\n' }}
{%- endif -%}
";

/// The template for a vocabulary.
pub(crate) fn template(tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let is_control =
        |text: &&str| tokenizer.token_id(text).is_some_and(|id| tokenizer.is_control(id));
    let known = FAMILIES.iter().find(|(tokens, _)| tokens.iter().all(is_control));
    let Some((_, source)) = known else { return Err(Error::NoChatTemplate) };
    Ok(ChatTemplate::new(source, SpecialTexts::of(tokenizer))?)
}

#[cfg(test)]
mod tests {
    use super::template;
    use crate::error::Error;
    use crate::tokenizer::{Tokenizer, Vocab};

    #[test]
    fn an_unknown_family_is_told_what_to_do() {
        let vocab = Vocab { tokens: vec!["<|im_start|>", "<|im_end|>"], ..Vocab::default() };
        let (tokenizer, _) = Tokenizer::new(&vocab).unwrap();
        let error = template(&tokenizer).unwrap_err();
        assert_eq!(error, Error::NoChatTemplate, "normal tokens are no control tokens");
        assert!(error.to_string().contains("--chat-template"), "{error}");
    }
}
