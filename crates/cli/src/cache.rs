//! How a command keeps keys and values.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fucina::CacheType;
use fucina::llm::SessionOptions;

/// The flag that `run`, `bench` and `chat` share.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct CacheArgs {
    /// How keys and values are stored; `q8_0` takes 53 % of the memory of `f16`, and heads of a
    /// multiple of 32 elements
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = parser())]
    pub(crate) cache_type: CacheType,
}

impl CacheArgs {
    /// Options of a session for so many tokens.
    pub(crate) fn options(self, context: Option<usize>) -> SessionOptions {
        SessionOptions::default().context(context).cache(self.cache_type)
    }
}

fn parser() -> impl TypedValueParser<Value = CacheType> {
    PossibleValuesParser::new(CacheType::ALL.map(CacheType::name)).map(|name| {
        let found = CacheType::ALL.into_iter().find(|cache| cache.name() == name);
        found.expect("the parser takes these names only")
    })
}
