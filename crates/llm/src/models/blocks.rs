//! What the families share: linear layers, the gated feed-forward block, attention over the cache,
//! and rotary positions.

use fucina_runtime::{
    Activation, AttentionParams, Axis, KvCache, Pairing, RopeConfig, RopeTable, Runtime, Scaling,
    Tensor, axes,
};

use crate::error::{Error, Result, Stage};
use crate::loader::Loader;
use crate::models::{Decoder, Pass};

axes! {
    /// Tokens of one forward pass.
    Token,
    /// Elements of the residual stream.
    Hidden,
    /// All query heads, flattened.
    Queries,
    /// All key (or value) heads, flattened.
    Keys,
    /// Query heads.
    Head,
    /// Key heads.
    KvHead,
    /// Elements of one head.
    HeadDim,
    /// Elements inside the feed-forward block.
    Ff,
    /// Tokens of the vocabulary.
    Vocab,
}

/// Sizes that every family has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sizes {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements of a query or key head.
    pub(crate) head_dim: usize,
    /// Elements of a value head.
    pub(crate) v_dim: usize,
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) eps: f32,
}

impl Sizes {
    /// Reads the sizes under the keys of the loader's architecture.
    pub(crate) fn read(loader: &Loader<'_>, vocab: usize) -> Result<Self> {
        let hidden = loader.count("embedding_length")?;
        let heads = loader.count("attention.head_count")?;
        let kv_heads = loader.count_or("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let key = loader.key("attention.head_count_kv");
            let why = "it does not divide the number of query heads";
            return Err(Error::Metadata { key, value: kv_heads.to_string(), why });
        }
        let head_dim = loader.count_or("attention.key_length", hidden / heads)?;
        let v_dim = loader.count_or("attention.value_length", head_dim)?;
        for (name, dim) in [("attention.key_length", head_dim), ("attention.value_length", v_dim)] {
            if heads.checked_mul(dim).is_none() {
                let (key, why) = (loader.key(name), "all heads together overflow");
                return Err(Error::Metadata { key, value: dim.to_string(), why });
            }
        }
        Ok(Self {
            layers: loader.count("block_count")?,
            hidden,
            heads,
            kv_heads,
            head_dim,
            v_dim,
            vocab,
            context: loader.count("context_length")?,
            eps: loader.positive_or("attention.layer_norm_rms_epsilon", 1e-5)?,
        })
    }
}

/// `x · weightᵀ + bias`.
pub(crate) struct Linear<N, K> {
    weight: Tensor<(N, K)>,
    bias: Option<Tensor<(N,)>>,
}

impl<N: Axis, K: Axis> Linear<N, K> {
    pub(crate) fn new(weight: Tensor<(N, K)>, bias: Option<Tensor<(N,)>>) -> Self {
        Self { weight, bias }
    }

    /// `[token, in]` to `[token, out]`.
    pub(crate) fn forward<T: Axis>(&self, x: &Tensor<(T, K)>) -> Result<Tensor<(T, N)>> {
        let y = x.as_dyn().matmul_t(self.weight.as_dyn())?;
        let y: Tensor<(T, N)> = Tensor::from_dyn(y)?;
        match &self.bias {
            Some(bias) => Ok(y.add_row(bias)?),
            None => Ok(y),
        }
    }
}

/// What follows attention in a layer: it changes each token on its own.
pub(crate) trait FeedsForward: Sized + Send + Sync {
    /// Loads the part of layer `block`, such as `blk.3`.
    fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str) -> Result<Self>;

    /// What the layer adds to `x`, which is normed.
    fn forward(&self, x: &Tensor<(Token, Hidden)>) -> Result<Tensor<(Token, Hidden)>>;
}

/// `down(activation(gate(x)) * up(x))`.
pub(crate) struct FeedForward {
    activation: Activation,
    gate: Linear<Ff, Hidden>,
    up: Linear<Ff, Hidden>,
    down: Linear<Hidden, Ff>,
}

impl FeedsForward for FeedForward {
    /// With `SiLU`, until [`activation`](Self::activation) says otherwise.
    fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str) -> Result<Self> {
        let (hidden, ff) = (sizes.hidden, loader.count("feed_forward_length")?);
        Ok(Self {
            activation: Activation::Silu,
            gate: loader.linear(&format!("{block}.ffn_gate"), [ff, hidden])?,
            up: loader.linear(&format!("{block}.ffn_up"), [ff, hidden])?,
            down: loader.linear(&format!("{block}.ffn_down"), [hidden, ff])?,
        })
    }

    fn forward(&self, x: &Tensor<(Token, Hidden)>) -> Result<Tensor<(Token, Hidden)>> {
        let (gate, up) = (self.gate.forward(x)?, self.up.forward(x)?);
        self.down.forward(&gate.glu(self.activation, &up)?)
    }
}

impl FeedForward {
    pub(crate) fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }
}

/// What a family may change about attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scores {
    /// Factor of the dot products.
    pub(crate) scale: f32,
    /// Positions that a query sees, its own included. `None` is all.
    pub(crate) window: Option<usize>,
    pub(crate) soft_cap: Option<f32>,
}

impl Scores {
    /// All positions, scaled by the root of the head size.
    #[expect(clippy::cast_precision_loss, reason = "a head has far fewer than 2^24 elements")]
    pub(crate) fn plain(sizes: &Sizes) -> Self {
        Self { scale: 1.0 / (sizes.head_dim as f32).sqrt(), window: None, soft_cap: None }
    }
}

/// The projections around attention.
pub(crate) struct Projections {
    scores: Scores,
    q: Linear<Queries, Hidden>,
    k: Linear<Keys, Hidden>,
    v: Linear<Keys, Hidden>,
    out: Linear<Hidden, Queries>,
    sizes: Sizes,
}

/// Queries, keys and values of one layer, by head. Queries may be those of the last tokens alone.
pub(crate) struct Qkv {
    pub(crate) q: Tensor<(Token, Head, HeadDim)>,
    pub(crate) k: Tensor<(Token, KvHead, HeadDim)>,
    pub(crate) v: Tensor<(Token, KvHead, HeadDim)>,
}

impl Projections {
    pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str) -> Result<Self> {
        let &Sizes { hidden, heads, kv_heads, head_dim, v_dim, .. } = sizes;
        Ok(Self {
            scores: Scores::plain(sizes),
            q: loader.linear(&format!("{block}.attn_q"), [heads * head_dim, hidden])?,
            k: loader.linear(&format!("{block}.attn_k"), [kv_heads * head_dim, hidden])?,
            v: loader.linear(&format!("{block}.attn_v"), [kv_heads * v_dim, hidden])?,
            out: loader.linear(&format!("{block}.attn_output"), [hidden, heads * v_dim])?,
            sizes: *sizes,
        })
    }

    pub(crate) fn scores(self, scores: Scores) -> Self {
        Self { scores, ..self }
    }

    /// Keys and values of all tokens of `x`, and queries of the last `rows`.
    pub(crate) fn forward(&self, x: &Tensor<(Token, Hidden)>, rows: usize) -> Result<Qkv> {
        let &Sizes { heads, kv_heads, head_dim, v_dim, .. } = &self.sizes;
        let tokens = x.size(Token);
        Ok(Qkv {
            q: self.q.forward(&last(x, rows)?)?.reshape([rows, heads, head_dim])?,
            k: self.k.forward(x)?.reshape([tokens, kv_heads, head_dim])?,
            v: self.v.forward(x)?.reshape([tokens, kv_heads, v_dim])?,
        })
    }

    /// Appends keys and values to the cache, attends, and projects back to the residual stream.
    pub(crate) fn attend(
        &self,
        cache: &mut KvCache,
        layer: usize,
        qkv: &Qkv,
    ) -> Result<Tensor<(Token, Hidden)>> {
        cache.append(layer, qkv.k.as_dyn(), qkv.v.as_dyn())?;
        let Scores { scale, window, soft_cap } = self.scores;
        let tokens = qkv.q.size(Token);
        let q_offset = cache.len() + qkv.k.size(Token) - tokens;
        let params = AttentionParams { scale, causal: true, q_offset, window, soft_cap };
        let heads = cache.attend(layer, qkv.q.as_dyn(), &params)?;
        let flat = heads.reshape(&[tokens, self.sizes.heads * self.sizes.v_dim])?;
        self.out.forward(&Tensor::from_dyn(flat)?)
    }
}

/// The last `rows` tokens.
pub(crate) fn last(x: &Tensor<(Token, Hidden)>, rows: usize) -> Result<Tensor<(Token, Hidden)>> {
    match x.size(Token) - rows {
        0 => Ok(x.clone()),
        first => Ok(x.narrow(Token, first, rows)?),
    }
}

/// Embedding, final norm and the projection to the vocabulary.
pub(crate) struct Ends {
    embedding: Tensor<(Vocab, Hidden)>,
    norm: Tensor<(Hidden,)>,
    /// `None` if the embedding serves as output too.
    output: Option<Tensor<(Vocab, Hidden)>>,
    eps: f32,
}

impl Ends {
    pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes) -> Result<Self> {
        let shape = [sizes.vocab, sizes.hidden];
        let tied = !loader.has("output.weight");
        let name = "token_embd.weight";
        Ok(Self {
            embedding: if tied {
                loader.matrix(name, shape)?
            } else {
                loader.table(name, shape)?
            },
            norm: loader.vector("output_norm.weight", sizes.hidden)?,
            output: if tied { None } else { Some(loader.matrix("output.weight", shape)?) },
            eps: sizes.eps,
        })
    }

    pub(crate) fn embed(&self, rt: &Runtime, tokens: &[u32]) -> Result<Tensor<(Token, Hidden)>> {
        // An id beyond i32 is beyond any vocabulary; the look-up refuses it.
        let ids: Vec<_> = tokens.iter().map(|&id| i32::try_from(id).unwrap_or(i32::MAX)).collect();
        let ids: Tensor<(Token,)> = Tensor::from_slice(rt, [ids.len()], &ids)?;
        Ok(self.embedding.rows(&ids)?)
    }

    /// Logits of the last `rows` tokens.
    pub(crate) fn logits(
        &self,
        x: &Tensor<(Token, Hidden)>,
        rows: usize,
    ) -> Result<Tensor<(Token, Vocab)>> {
        let x = last(x, rows.min(x.size(Token)))?.rms_norm(&self.norm, self.eps)?;
        Ok(x.dot(self.output.as_ref().unwrap_or(&self.embedding), Hidden)?)
    }
}

/// How a family turns positions into rotations.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rotary {
    dims: usize,
    base: f32,
    scaling: Scaling,
    freq_factors: Option<Vec<f32>>,
    pub(crate) pairing: Pairing,
}

impl Rotary {
    pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes, pairing: Pairing) -> Result<Self> {
        let dims = loader.count_or("rope.dimension_count", sizes.head_dim)?;
        if dims > sizes.head_dim || !dims.is_multiple_of(2) {
            let (key, value) = (loader.key("rope.dimension_count"), dims.to_string());
            let why = "an even number up to the head size is expected";
            return Err(Error::Metadata { key, value, why });
        }
        let name = "rope_freqs.weight";
        let freq_factors = if loader.has(name) {
            Some(loader.vector::<HeadDim>(name, dims / 2)?.to_vec()?)
        } else {
            None
        };
        Ok(Self {
            dims,
            base: loader.positive_or("rope.freq_base", 10_000.0)?,
            scaling: scaling(loader, sizes)?,
            freq_factors,
            pairing,
        })
    }

    /// The same with another base, and neither scaling nor frequency factors.
    pub(crate) fn unscaled(&self, base: f32) -> Self {
        Self { base, scaling: Scaling::None, freq_factors: None, ..self.clone() }
    }

    /// The table for `tokens` tokens from position `start` on.
    pub(crate) fn table(&self, rt: &Runtime, start: usize, tokens: usize) -> Result<RopeTable> {
        let positions: Vec<_> =
            (start..start + tokens).map(|at| i32::try_from(at).unwrap_or(i32::MAX)).collect();
        let config = RopeConfig {
            dims: self.dims,
            base: self.base,
            freq_factors: self.freq_factors.as_deref(),
            scaling: self.scaling,
        };
        Ok(RopeTable::new(rt, &config, &positions)?)
    }
}

fn scaling(loader: &Loader<'_>, sizes: &Sizes) -> Result<Scaling> {
    let key = loader.key("rope.scaling.type");
    let kind = loader.metadata().str_or(&key, "none")?;
    let factor = || loader.positive_or("rope.scaling.factor", 1.0);
    match kind {
        // Older files give a factor without a type; it was linear then.
        "none" if loader.metadata().contains(&loader.key("rope.scale_linear")) => {
            Ok(Scaling::Linear { factor: loader.positive_or("rope.scale_linear", 1.0)? })
        }
        "none" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: factor()? }),
        "yarn" => {
            let context = loader.count_or("rope.scaling.original_context_length", sizes.context)?;
            Ok(Scaling::Yarn {
                factor: factor()?,
                original_context: u32::try_from(context).unwrap_or(u32::MAX),
                ext_factor: 1.0,
                attn_factor: loader.positive_or("rope.scaling.attn_factor", 1.0)?,
                beta_fast: loader.positive_or("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: loader.positive_or("rope.scaling.yarn_beta_slow", 1.0)?,
            })
        }
        other => {
            let why = "supported are none, linear and yarn";
            Err(Error::Metadata { key, value: other.to_owned(), why })
        }
    }
}

/// A layer of a [`Stack`].
pub(crate) trait Layer: Sized + Send + Sync {
    /// Loads layer `block`, such as `blk.3`.
    fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str) -> Result<Self>;

    /// Runs the layer. The result is that of the last [`Place::rows`] tokens.
    fn forward(
        &self,
        x: Tensor<(Token, Hidden)>,
        at: &mut Place<'_>,
    ) -> Result<Tensor<(Token, Hidden)>>;
}

/// Where in a forward pass a layer runs.
pub(crate) struct Place<'a> {
    pub(crate) layer: usize,
    pub(crate) cache: &'a mut KvCache,
    /// Last tokens that somebody reads after this layer: all, but for the last layer. The others
    /// leave their keys and values.
    pub(crate) rows: usize,
    /// Of all tokens.
    pub(crate) rope: &'a RopeTable,
    pub(crate) pairing: Pairing,
    pub(crate) eps: f32,
}

impl Place<'_> {
    /// The table of the tokens that have queries.
    pub(crate) fn query_rope(&self) -> Result<RopeTable> {
        Ok(self.rope.last(self.rows)?)
    }
}

/// A stack of equal layers between the ends, which is what most families are.
pub(crate) struct Stack<L> {
    ends: Ends,
    layers: Vec<L>,
    rotary: Rotary,
    sizes: Sizes,
}

impl<L: Layer> Stack<L> {
    pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes, pairing: Pairing) -> Result<Self> {
        Ok(Self {
            ends: Ends::load(loader, sizes)?,
            layers: (0..sizes.layers)
                .map(|layer| L::load(loader, sizes, &format!("blk.{layer}")))
                .collect::<Result<_>>()?,
            rotary: Rotary::load(loader, sizes, pairing)?,
            sizes: *sizes,
        })
    }
}

impl<L: Layer> Decoder for Stack<L> {
    fn forward(&self, pass: Pass<'_>) -> Result<Tensor<(Token, Vocab)>> {
        let (rt, tokens) = (pass.rt, pass.tokens);
        pass.cache.reserve(tokens.len())?;
        let mut x = self.ends.embed(rt, tokens)?;
        pass.check(Stage::Embedding, &x)?;
        let rope = self.rotary.table(rt, pass.cache.len(), tokens.len())?;
        for (layer, block) in self.layers.iter().enumerate() {
            let (pairing, eps) = (self.rotary.pairing, self.sizes.eps);
            let (rows, cache) = (pass.rows_after(layer, self.layers.len()), &mut *pass.cache);
            x = block.forward(x, &mut Place { layer, cache, rows, rope: &rope, pairing, eps })?;
            pass.check(Stage::Layer(layer), &x)?;
        }
        pass.cache.advance(tokens.len())?;
        self.ends.logits(&x, pass.rows)
    }
}
