//! Reading a vocabulary from a file's metadata.

use fucina_gguf::Metadata;

use super::Tokenizer;
use super::error::{Error, Warning};
use super::vocab::{Algorithm, TokenType, Vocab};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const REMOVE_EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(super) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(super) const EOS: &str = "tokenizer.ggml.eos_token_id";
pub(super) const EOT: &str = "tokenizer.ggml.eot_token_id";
pub(super) const EOM: &str = "tokenizer.ggml.eom_token_id";
pub(super) const PAD: &str = "tokenizer.ggml.padding_token_id";

impl Tokenizer {
    /// Makes the tokenizer that a file carries. The warnings tell what was odd about it.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if the file carries no vocabulary of a known kind, or a damaged one.
    pub fn from_gguf(metadata: &Metadata) -> Result<(Self, Vec<Warning>), Error> {
        let algorithm = match metadata.str(MODEL)? {
            "gpt2" => Algorithm::ByteLevelBpe,
            "llama" => Algorithm::SentencePiece,
            other => return Err(Error::UnsupportedModel { name: other.to_owned() }),
        };
        let bytes = algorithm == Algorithm::ByteLevelBpe;
        let tokens: Vec<&str> = metadata.str_array(TOKENS)?.iter().collect();
        let types = match metadata.i32_array_opt(TOKEN_TYPE)? {
            // The plain form takes "no types" for "all normal"; a file that has the key means it.
            Some(types) if types.is_empty() && !tokens.is_empty() => {
                return Err(Error::TypeCount { tokens: tokens.len(), types: 0 });
            }
            Some(types) => types
                .iter()
                .zip(0u32..)
                .map(|(&value, id)| TokenType::from_number(id, value.into()))
                .collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let id = |key| designated(metadata, key, tokens.len());
        let mut warnings = Vec::new();
        let pad = id(PAD).or_else(|e| match e {
            Error::IdOutOfRange { key, id, vocab_size } => {
                warnings.push(Warning::IdIgnored { key, id, vocab_size });
                Ok(None)
            }
            e => Err(e),
        })?;
        if !bytes && metadata.bool_or(REMOVE_EXTRA_SPACES, false)? {
            warnings.push(Warning::ExtraSpacesKept);
        }
        let vocab = Vocab {
            algorithm,
            types,
            scores: if bytes { Vec::new() } else { metadata.f32_array(SCORES)?.into_owned() },
            merges: if bytes { metadata.str_array(MERGES)?.iter().collect() } else { Vec::new() },
            pre: metadata.str_opt(PRE)?,
            bos: id(BOS)?,
            eos: id(EOS)?,
            eot: id(EOT)?,
            eom: id(EOM)?,
            pad,
            add_bos: metadata.bool_opt(ADD_BOS)?,
            add_eos: metadata.bool_or(ADD_EOS, false)?,
            add_space_prefix: metadata.bool_opt(ADD_SPACE_PREFIX)?,
            tokens,
        };
        let (tokenizer, more) = Self::new(&vocab)?;
        warnings.extend(more);
        Ok((tokenizer, warnings))
    }
}

/// The id under `key`. Files are known to write -1 in both signednesses for "none".
fn designated(
    metadata: &Metadata,
    key: &'static str,
    vocab_size: usize,
) -> Result<Option<u32>, Error> {
    let Some(value) = metadata.i64_opt(key)? else { return Ok(None) };
    if value == -1 || value == i64::from(u32::MAX) {
        return Ok(None);
    }
    match u32::try_from(value) {
        Ok(id) if (id as usize) < vocab_size => Ok(Some(id)),
        _ => Err(Error::IdOutOfRange { key, id: value, vocab_size }),
    }
}
