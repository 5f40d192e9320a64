//! A loaded model, and sessions that run it.

use fucina_gguf::File;
use fucina_runtime::{
    CacheType, DType, KvCache, KvShape, Place, Runtime, Tensor, free_memory_bytes,
};

use crate::chat::{self, ChatTemplate, SpecialTexts};
use crate::error::{Error, Result, Stage};
use crate::loader::{Loader, Memory, Weight};
use crate::models::blocks::{Sizes, Token, Vocab};
use crate::models::{self, Decoder, Pass};
use crate::pack::{Pack, PackPlan};
use crate::saved;
use crate::tokenizer::{Tokenizer, Warning as TokenizerWarning};

type Load = fn(&Loader<'_>, &Sizes) -> Result<Box<dyn Decoder>>;

/// The families, by `general.architecture`. A new one is a file in `models` and a row here.
const FAMILIES: &[(&str, Load)] = &[
    ("gemma3", models::gemma3::load),
    ("llama", models::llama::load),
    ("qwen2", models::qwen2::load),
    ("qwen3", models::qwen3::load),
    ("qwen3moe", models::qwen3moe::load),
];

/// The architectures that can be loaded.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|&(name, _)| name)
}

/// Tokens of a prompt that run in one forward pass. More would take memory without being faster.
const BATCH: usize = 512;

/// Context size where neither the caller nor the model asks for less.
pub const DEFAULT_CONTEXT: usize = 4096;

/// A language model.
pub struct Model {
    rt: Runtime,
    decoder: Box<dyn Decoder>,
    tokenizer: Tokenizer,
    info: ModelInfo,
    kv: KvShape,
    weights: Vec<Weight>,
    fingerprint: u128,
    /// Its source, as far as the file has one.
    chat_template: std::result::Result<Option<String>, fucina_gguf::Error>,
}

/// Where a weight of a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightPlace {
    /// Name of the tensor in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Bytes of the form that the CPU kernels read. Zero if they read the tensor's own.
    pub packed_bytes: usize,
    /// Bytes of the f32 copy that products of many rows read. Zero without one.
    pub f32_shadow_bytes: usize,
    /// Where it is.
    pub place: Place,
}

/// What a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, or the file's name.
    pub name: String,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of all tensors in the file.
    pub file_bytes: u64,
    /// The type that most weight bytes have.
    pub main_type: &'static str,
    /// Where the weights are.
    pub memory: Memory,
    /// Matrices that [`Pack::Auto`](crate::Pack::Auto) left in the file for want of free memory.
    /// Their products are slow.
    pub not_packed: usize,
    /// Tokens that the model was made for.
    pub context: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tensors of the file that the model does not use.
    pub unused_tensors: Vec<String>,
    /// What is odd about the tokenizer.
    pub tokenizer_warnings: Vec<TokenizerWarning>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Model {
    /// Loads the model of a file, with the default options. `progress` gets the bytes done and all
    /// bytes, now and then.
    ///
    /// # Errors
    ///
    /// Fails for an unknown architecture, and if the file lacks something or is damaged; the error
    /// names the key or the tensor.
    pub fn load(rt: &Runtime, file: &File, progress: &dyn Fn(u64, u64)) -> Result<Self> {
        Self::load_with(rt, file, &LoadOptions::default(), progress)
    }

    /// Does what [`load`](Self::load) does, with options.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load).
    pub fn load_with(
        rt: &Runtime,
        file: &File,
        options: &LoadOptions,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Self> {
        let architecture = file.metadata().str("general.architecture")?;
        let family = FAMILIES.iter().find(|(name, _)| *name == architecture);
        let Some(&(_, load)) = family else {
            return Err(Error::Architecture { found: architecture.to_owned() });
        };
        let (tokenizer, tokenizer_warnings) = Tokenizer::from_gguf(file.metadata())?;
        // While the pages of the samples are about to be read anyway.
        let fingerprint = saved::fingerprint(file)?;
        let plan = PackPlan::new(file, options.pack, free_memory_bytes());
        let not_packed = plan.left_out();
        let loader = Loader::new(rt, file, architecture, plan, progress);
        // The embedding tells the size of the vocabulary; files pad it beyond the tokenizer's.
        let embedding = file.tensor("token_embd.weight")?.shape_row_major();
        let vocab = embedding.first().copied().unwrap_or(0);
        if vocab < tokenizer.vocab_size() {
            return Err(Error::Vocabulary { tokens: tokenizer.vocab_size(), rows: vocab });
        }
        let sizes = Sizes::read(&loader, vocab)?;
        let decoder = load(&loader, &sizes)?;
        let info = ModelInfo {
            architecture: architecture.to_owned(),
            name: file.metadata().str_or("general.name", file.name())?.to_owned(),
            parameters: file.tensors().iter().map(|tensor| tensor.len_elems() as u64).sum(),
            file_bytes: file.tensor_bytes(),
            main_type: main_type(file),
            memory: loader.memory(),
            not_packed,
            context: sizes.context,
            vocab,
            unused_tensors: loader.unused(),
            tokenizer_warnings,
        };
        let kv = KvShape {
            layers: sizes.layers,
            capacity: 0,
            kv_heads: sizes.kv_heads,
            k_dim: sizes.head_dim,
            v_dim: sizes.v_dim,
            cache: CacheType::default(),
        };
        // A broken one is reported by who needs it.
        let chat_template =
            file.metadata().str_opt(chat::TEMPLATE_KEY).map(|source| source.map(str::to_owned));
        let (rt, weights) = (rt.clone(), loader.into_weights());
        Ok(Self { rt, decoder, tokenizer, info, kv, weights, fingerprint, chat_template })
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Where each weight is at the moment, and where the calls ran that have read it.
    pub fn placement(&self) -> impl Iterator<Item = WeightPlace> {
        self.weights.iter().map(|Weight { name, tensor }| WeightPlace {
            name: name.clone(),
            dtype: tensor.dtype(),
            packed_bytes: tensor.packed_bytes(),
            f32_shadow_bytes: tensor.f32_shadow_bytes(),
            place: tensor.place(),
        })
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The file's chat template or, for a file without one, that of a family which its control
    /// tokens tell.
    ///
    /// # Errors
    ///
    /// Fails if the template is damaged, and if there is none and the family is not known.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        match self.chat_template.clone()? {
            Some(source) => Ok(ChatTemplate::new(&source, SpecialTexts::of(&self.tokenizer))?),
            None => chat::fallback_template(&self.tokenizer),
        }
    }

    /// The runtime it runs on.
    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// Tells this model from others, in saved sessions.
    pub(crate) fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// A session without tokens.
    ///
    /// # Errors
    ///
    /// Fails for a context that is empty or larger than the model's, for a type of cache that the
    /// model's heads do not fit, or without memory.
    pub fn session(&self, options: &SessionOptions) -> Result<Session<'_>> {
        let limit = self.info.context;
        let wanted = options.context.unwrap_or_else(|| limit.min(DEFAULT_CONTEXT));
        if wanted == 0 || wanted > limit {
            return Err(Error::Context { wanted, limit });
        }
        let shape = KvShape { capacity: wanted, cache: options.cache, ..self.kv };
        let cache = KvCache::new(&self.rt, shape)?;
        Ok(Session { model: self, cache, tokens: Vec::new() })
    }
}

/// Name of the type with the most bytes.
fn main_type(file: &File) -> &'static str {
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    for tensor in file.tensors() {
        let bytes = tensor.len_bytes() as u64;
        match sums.iter_mut().find(|(name, _)| *name == tensor.type_name()) {
            Some((_, sum)) => *sum += bytes,
            None => sums.push((tensor.type_name(), bytes)),
        }
    }
    sums.into_iter().max_by_key(|&(_, sum)| sum).map_or("none", |(name, _)| name)
}

/// How a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Which matrices are repacked for the CPU kernels.
    pub pack: Pack,
}

impl LoadOptions {
    /// Sets [`pack`](Self::pack).
    #[must_use]
    pub const fn pack(mut self, pack: Pack) -> Self {
        self.pack = pack;
        self
    }
}

/// What a session is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Tokens that fit. `None`: what the model was made for, but at most [`DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// How keys and values are stored.
    pub cache: CacheType,
}

impl SessionOptions {
    /// Sets how keys and values are stored.
    #[must_use]
    pub const fn cache(mut self, cache: CacheType) -> Self {
        self.cache = cache;
        self
    }

    /// Sets the number of tokens that fit.
    #[must_use]
    pub const fn context(mut self, context: Option<usize>) -> Self {
        self.context = context;
        self
    }
}

/// One text in the making: the keys and values of its tokens.
#[derive(Debug)]
pub struct Session<'m> {
    model: &'m Model,
    pub(crate) cache: KvCache,
    /// Those whose keys and values are in the cache.
    pub(crate) tokens: Vec<u32>,
}

impl<'m> Session<'m> {
    /// The model.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// The tokens held.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens held.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Reports whether no token is held.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// Tokens that fit.
    pub fn context(&self) -> usize {
        self.cache.shape().capacity
    }

    /// How keys and values are stored.
    pub fn cache_type(&self) -> CacheType {
        self.cache.shape().cache
    }

    /// Bytes of the cache.
    pub fn cache_bytes(&self) -> usize {
        self.cache.shape().bytes().unwrap_or(usize::MAX)
    }

    /// Forgets the tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.cache.truncate(len);
        self.tokens.truncate(len);
    }

    /// Runs tokens after those held, and returns the logits after the last one, `[vocab]`.
    ///
    /// After an error the session holds what it held before.
    ///
    /// # Errors
    ///
    /// Fails without tokens, if they do not fit the context, for an id outside the vocabulary, if
    /// the logits are not finite, or with a device's fault.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.feed_with(tokens, &mut |_| true).map(|logits| logits.unwrap_or_default())
    }

    /// As [`feed`](Self::feed). Calls `go_on` with the tokens done, after each batch; `false`
    /// stops, and the result is `None`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn feed_with(
        &mut self,
        tokens: &[u32],
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Vec<f32>>> {
        let held = self.len();
        let result = self.feed_batches(tokens, 1, go_on);
        if result.is_err() {
            self.truncate(held);
        }
        result
    }

    /// As [`feed`](Self::feed), with the logits after every token, `[tokens, vocab]`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn feed_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let held = self.len();
        let mut all = Vec::new();
        for batch in tokens.chunks(BATCH) {
            match self.feed_batches(batch, batch.len(), &mut |_| true) {
                Ok(logits) => all.extend(logits.unwrap_or_default()),
                Err(error) => {
                    self.truncate(held);
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    fn feed_batches(
        &mut self,
        tokens: &[u32],
        rows: usize,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Vec<f32>>> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let (held, context) = (self.len(), self.context());
        if tokens.len() > context - held {
            return Err(Error::PromptTooLong { prompt: tokens.len(), held, context });
        }
        let mut done = 0;
        let mut logits = None;
        for batch in tokens.chunks(BATCH) {
            let last = done + batch.len() == tokens.len();
            // Reading them waits, so that a fault shows here and not in a later batch.
            let out = self.run(batch, if last { rows } else { 1 })?;
            self.tokens.extend_from_slice(batch);
            done += batch.len();
            if last {
                logits = Some(out.to_vec()?);
            }
            if !go_on(done) {
                return Ok(None);
            }
        }
        Ok(logits)
    }

    /// Runs one batch. Logits that are not finite are an error that says where it began.
    fn run(&mut self, tokens: &[u32], rows: usize) -> Result<Tensor<(Token, Vocab)>> {
        let (decoder, rt, held) = (&self.model.decoder, &self.model.rt, self.cache.len());
        let pass = Pass { rt, tokens, cache: &mut self.cache, rows, checked: false };
        let logits = decoder.forward(pass)?;
        if logits.as_dyn().is_finite()? {
            return Ok(logits);
        }
        self.cache.truncate(held);
        decoder.forward(Pass { rt, tokens, cache: &mut self.cache, rows, checked: true })?;
        Err(Error::NotFinite { stage: Stage::Output })
    }
}
