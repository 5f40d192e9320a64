//! Gemma 3, text only: norms before and after each part of a block, and five local layers for each
//! global one.
//!
//! ```text
//! x = sqrt(hidden) * embedding
//! h = rms_norm(x);  q, k, v = Wq h, Wk h, Wv h
//! q, k = rope(rms_norm(q)), rope(rms_norm(k))         halves pair up
//! x = x + rms_norm(Wo attention(q, k, v))
//! x = x + rms_norm(Wdown (gelu(Wgate h') * Wup h')),  h' = rms_norm(x)
//! ```
//!
//! A local layer sees a window of positions and rotates with a base of its own; a global one sees
//! all of them, and the file's frequency scaling is for it alone. The published norm weights are
//! meant plus one; files store the sum.

use fucina_runtime::{Activation, Pairing, Tensor, UnaryOp};

use crate::error::{Error, Result, Stage};
use crate::loader::Loader;
use crate::models::blocks::{
    Ends, FeedForward, FeedsForward, HeadDim, Hidden, Place, Projections, Rotary, Scores, Sizes,
    Token, Vocab, last,
};
use crate::models::{Decoder, Pass};

/// Layers from one global layer to the next, where the file does not say.
const PATTERN: usize = 6;
/// Base of the rotation in local layers, where the file does not say.
const LOCAL_BASE: f32 = 10_000.0;
/// Layers of the model of 27 billion weights.
const LAYERS_OF_27B: usize = 62;

pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes) -> Result<Box<dyn Decoder>> {
    let window = window(loader)?;
    let global = Scores {
        scale: attention_scale(loader, sizes)?,
        window: None,
        soft_cap: loader.positive_opt("attn_logit_softcapping")?,
    };
    let layers = (0..sizes.layers).map(|layer| {
        let local = window.is_some() && is_local(loader, layer)?;
        let scores = if local { Scores { window, ..global } } else { global };
        Block::load(loader, sizes, &format!("blk.{layer}"), scores)
    });
    let layers = layers.collect::<Result<_>>()?;
    let global = Rotary::load(loader, sizes, Pairing::Halves)?;
    Ok(Box::new(Gemma3 {
        ends: Ends::load(loader, sizes)?,
        layers,
        local: global.unscaled(loader.positive_or("rope.freq_base_swa", LOCAL_BASE)?),
        global,
        logit_cap: loader.positive_opt("final_logit_softcapping")?,
        sizes: *sizes,
    }))
}

/// The window of the local layers. Zero means that there are none.
fn window(loader: &Loader<'_>) -> Result<Option<usize>> {
    let window = loader.metadata().usize_or(&loader.key("attention.sliding_window"), 0)?;
    Ok((window > 0).then_some(window))
}

/// Whether a layer is local: by a flag for each layer, or by the distance of the global ones.
fn is_local(loader: &Loader<'_>, layer: usize) -> Result<bool> {
    let name = "attention.sliding_window_pattern";
    let key = loader.key(name);
    if let Ok(Some(flags)) = loader.metadata().bool_array_opt(&key) {
        return flags.get(layer).copied().ok_or_else(|| {
            let value = format!("an array of {}", flags.len());
            Error::Metadata { key, value, why: "one flag for each layer is expected" }
        });
    }
    let pattern = loader.count_or(name, PATTERN)?;
    Ok(!(layer + 1).is_multiple_of(pattern))
}

/// The factor of the dot products. Queries are scaled by the root of a head's elements; in the
/// model of 27 billion weights, by that of the hidden elements for each head.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^24")]
fn attention_scale(loader: &Loader<'_>, sizes: &Sizes) -> Result<f32> {
    let elems = match sizes.layers {
        LAYERS_OF_27B => sizes.hidden / sizes.heads,
        _ => sizes.head_dim,
    };
    loader.positive_or("attention.scale", 1.0 / (elems.max(1) as f32).sqrt())
}

struct Gemma3 {
    ends: Ends,
    layers: Vec<Block>,
    local: Rotary,
    global: Rotary,
    /// `cap * tanh(logits / cap)`.
    logit_cap: Option<f32>,
    sizes: Sizes,
}

impl Decoder for Gemma3 {
    fn forward(&self, pass: Pass<'_>) -> Result<Tensor<(Token, Vocab)>> {
        let (rt, tokens) = (pass.rt, pass.tokens);
        pass.cache.reserve(tokens.len())?;
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^24")]
        let root = (self.sizes.hidden as f32).sqrt();
        let mut x = self.ends.embed(rt, tokens)?.scale(root)?;
        pass.check(Stage::Embedding, &x)?;
        let global = self.global.table(rt, pass.cache.len(), tokens.len())?;
        let local = self.local.table(rt, pass.cache.len(), tokens.len())?;
        for (layer, block) in self.layers.iter().enumerate() {
            let rope = if block.scores.window.is_some() { &local } else { &global };
            let (rows, cache) = (pass.rows_after(layer, self.layers.len()), &mut *pass.cache);
            let (pairing, eps) = (Pairing::Halves, self.sizes.eps);
            x = block.forward(&x, &mut Place { layer, cache, rows, rope, pairing, eps })?;
            pass.check(Stage::Layer(layer), &x)?;
        }
        pass.cache.advance(tokens.len())?;
        let logits = self.ends.logits(&x, pass.rows)?;
        match self.logit_cap {
            Some(cap) => Ok(Tensor::from_dyn(logits.as_dyn().unary(UnaryOp::SoftCap(cap))?)?),
            None => Ok(logits),
        }
    }
}

struct Block {
    attn_norm: Tensor<(Hidden,)>,
    attention: Projections,
    q_norm: Tensor<(HeadDim,)>,
    k_norm: Tensor<(HeadDim,)>,
    attn_post_norm: Tensor<(Hidden,)>,
    ff_norm: Tensor<(Hidden,)>,
    ff: FeedForward,
    ff_post_norm: Tensor<(Hidden,)>,
    scores: Scores,
}

impl Block {
    fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str, scores: Scores) -> Result<Self> {
        let norm = |name: &str| loader.vector(&format!("{block}.{name}.weight"), sizes.hidden);
        let head = |name: &str| loader.vector(&format!("{block}.{name}.weight"), sizes.head_dim);
        Ok(Self {
            attn_norm: norm("attn_norm")?,
            attention: Projections::load(loader, sizes, block)?.scores(scores),
            q_norm: head("attn_q_norm")?,
            k_norm: head("attn_k_norm")?,
            attn_post_norm: norm("post_attention_norm")?,
            ff_norm: norm("ffn_norm")?,
            ff: FeedForward::load(loader, sizes, block)?.activation(Activation::GeluTanh),
            ff_post_norm: norm("post_ffw_norm")?,
            scores,
        })
    }

    fn forward(
        &self,
        x: &Tensor<(Token, Hidden)>,
        at: &mut Place<'_>,
    ) -> Result<Tensor<(Token, Hidden)>> {
        let (eps, pairing) = (at.eps, at.pairing);
        let mut qkv = self.attention.forward(&x.rms_norm(&self.attn_norm, eps)?, at.rows)?;
        qkv.q = qkv.q.rms_norm(&self.q_norm, eps)?.rope(&at.query_rope()?, pairing)?;
        qkv.k = qkv.k.rms_norm(&self.k_norm, eps)?.rope(at.rope, pairing)?;
        let attended = self.attention.attend(at.cache, at.layer, &qkv)?;
        let x = last(x, at.rows)?.add(&attended.rms_norm(&self.attn_post_norm, eps)?)?;
        let fed = self.ff.forward(&x.rms_norm(&self.ff_norm, eps)?)?;
        Ok(x.add(&fed.rms_norm(&self.ff_post_norm, eps)?)?)
    }
}
