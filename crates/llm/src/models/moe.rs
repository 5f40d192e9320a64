//! Mixture of experts: a router chooses a few of many small feed-forward blocks for each token.
//!
//! ```text
//! p = softmax(Wrouter x)                                  over all experts
//! e1, .. = the largest of p, w = p[e1], ..                ties: the lower number first
//! w = w / sum(w)                                          where the family does
//! y = Σ_j w_j Wdown[e_j] (silu(Wgate[e_j] x) * Wup[e_j] x)
//! ```
//!
//! The products run as grouped ones: the rows of each expert together, whatever their number.

use fucina_runtime::{Activation, GroupRows, Groups, Tensor, axes};

use crate::error::{Error, Result};
use crate::loader::Loader;
use crate::models::blocks::{Hidden, Linear, Sizes, Token};

axes! {
    /// Experts of a layer.
    Expert,
    /// Experts that a token uses.
    Choice,
    /// Choices of all tokens, sorted by expert.
    Chosen,
    /// Elements inside an expert.
    Inner,
}

/// What a file cannot be relied on to say of its router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Routing {
    /// The weights of the chosen experts are divided by their sum. Files of most families do not
    /// carry this setting of the published model, so the family gives it.
    pub(crate) normalized: bool,
}

/// The experts of one layer, and the router that chooses among them.
pub(crate) struct Experts {
    router: Linear<Expert, Hidden>,
    gate: Tensor<(Expert, Inner, Hidden)>,
    up: Tensor<(Expert, Inner, Hidden)>,
    down: Tensor<(Expert, Hidden, Inner)>,
    count: usize,
    used: usize,
    normalized: bool,
}

impl Experts {
    pub(crate) fn load(
        loader: &Loader<'_>,
        sizes: &Sizes,
        block: &str,
        routing: Routing,
    ) -> Result<Self> {
        let (count, used) = (loader.count("expert_count")?, loader.count("expert_used_count")?);
        if used > count {
            let why = "it is more than there are experts";
            return Err(metadata(loader, "expert_used_count", used, why));
        }
        check_supported(loader)?;
        let (hidden, inner) = (sizes.hidden, inner_size(loader, used)?);
        let name = |name: &str| format!("{block}.ffn_{name}_exps.weight");
        Ok(Self {
            router: loader.linear(&format!("{block}.ffn_gate_inp"), [count, hidden])?,
            gate: loader.experts(&name("gate"), [count, inner, hidden])?,
            up: loader.experts(&name("up"), [count, inner, hidden])?,
            down: loader.experts(&name("down"), [count, hidden, inner])?,
            count,
            used,
            normalized: loader
                .metadata()
                .bool_or(&loader.key("expert_weights_norm"), routing.normalized)?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor<(Token, Hidden)>) -> Result<Tensor<(Token, Hidden)>> {
        let scores = self.router.forward(x)?.softmax(Expert, 1.0)?;
        let (weights, choices) = scores.as_dyn().top_k(self.used)?;
        let weights = if self.normalized { weights.divide_by_sum()? } else { weights };
        let weights: Tensor<(Token, Choice)> = Tensor::from_dyn(weights)?;
        let groups = Groups::new(&choices, self.count)?;
        let from_tokens = |matrices: &Tensor<(Expert, Inner, Hidden)>| {
            x.dot_grouped::<_, _, Chosen>(matrices, &groups, GroupRows::Tokens)
        };
        let inner = from_tokens(&self.gate)?.glu(Activation::Silu, &from_tokens(&self.up)?)?;
        let out = inner.dot_grouped::<_, _, Chosen>(&self.down, &groups, GroupRows::Sorted)?;
        Ok(out.combine(&weights, &groups)?)
    }
}

/// Elements inside one expert. Files without the key share the block's among the experts used.
fn inner_size(loader: &Loader<'_>, used: usize) -> Result<usize> {
    let (name, of_block) = ("expert_feed_forward_length", "feed_forward_length");
    let given = |name: &str| loader.metadata().contains(&loader.key(name));
    if given(name) || !given(of_block) {
        return loader.count(name);
    }
    let inner = loader.count(of_block)? / used;
    if inner == 0 {
        let why = "it is less than one element for each expert that a token uses";
        return Err(metadata(loader, of_block, loader.count(of_block)?, why));
    }
    Ok(inner)
}

/// Refuses routers that compute something else, instead of computing nonsense.
fn check_supported(loader: &Loader<'_>) -> Result<()> {
    /// How files number the softmax.
    const SOFTMAX: usize = 1;
    let of = |name: &str, default: usize| loader.metadata().usize_or(&loader.key(name), default);
    let gating = of("expert_gating_func", SOFTMAX)?;
    if gating != SOFTMAX {
        let why = "only routers with a softmax (1) are supported";
        return Err(metadata(loader, "expert_gating_func", gating, why));
    }
    let shared = of("expert_shared_count", 0)?;
    if shared != 0 {
        let why = "shared experts are not supported";
        return Err(metadata(loader, "expert_shared_count", shared, why));
    }
    let scale = loader.positive_or("expert_weights_scale", 1.0)?;
    if (scale - 1.0).abs() > f32::EPSILON {
        let (key, value) = (loader.key("expert_weights_scale"), scale.to_string());
        return Err(Error::Metadata { key, value, why: "only 1 is supported" });
    }
    Ok(())
}

fn metadata(loader: &Loader<'_>, name: &str, value: usize, why: &'static str) -> Error {
    Error::Metadata { key: loader.key(name), value: value.to_string(), why }
}
