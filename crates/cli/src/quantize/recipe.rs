//! Which type each tensor of a file gets: the rules of llama.cpp's `llama-quantize`, so that the
//! same name means the same file.
//!
//! Matrices get the format that the recipe is named after. The output matrix and the tensors whose
//! errors hurt most get more bits: `attn_v`, `ffn_down`, and `attn_output` of the small formats.
//! Vectors, norms and the gate that chooses experts stay as they are.

use clap::ValueEnum;
use fucina::DType;
use fucina::gguf::{File, TensorInfo};

/// A format or a mix of formats. Names and numbers are llama.cpp's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Recipe {
    #[value(name = "f32")]
    F32,
    #[value(name = "f16")]
    F16,
    #[value(name = "bf16")]
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "q5_k_m", alias = "q5_k")]
    Q5KM,
    #[value(name = "q5_k_s")]
    Q5KS,
    #[value(name = "q5_1")]
    Q5_1,
    #[value(name = "q5_0")]
    Q5_0,
    #[value(name = "q4_k_m", alias = "q4_k")]
    Q4KM,
    #[value(name = "q4_k_s")]
    Q4KS,
    #[value(name = "q4_1")]
    Q4_1,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q3_k_l")]
    Q3KL,
    #[value(name = "q3_k_m", alias = "q3_k")]
    Q3KM,
    #[value(name = "q3_k_s")]
    Q3KS,
    #[value(name = "q2_k")]
    Q2K,
    #[value(name = "tq2_0")]
    Tq2_0,
}

impl Recipe {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The type of most matrices, and the number of the recipe in `general.file_type`.
    const fn row(self) -> (DType, u32) {
        match self {
            Self::F32 => (DType::F32, 0),
            Self::F16 => (DType::F16, 1),
            Self::Q4_0 => (DType::Q4_0, 2),
            Self::Q4_1 => (DType::Q4_1, 3),
            Self::Q8_0 => (DType::Q8_0, 7),
            Self::Q5_0 => (DType::Q5_0, 8),
            Self::Q5_1 => (DType::Q5_1, 9),
            Self::Q2K => (DType::Q2_K, 10),
            Self::Q3KS => (DType::Q3_K, 11),
            Self::Q3KM => (DType::Q3_K, 12),
            Self::Q3KL => (DType::Q3_K, 13),
            Self::Q4KS => (DType::Q4_K, 14),
            Self::Q4KM => (DType::Q4_K, 15),
            Self::Q5KS => (DType::Q5_K, 16),
            Self::Q5KM => (DType::Q5_K, 17),
            Self::Q6K => (DType::Q6_K, 18),
            Self::Bf16 => (DType::BF16, 32),
            Self::Tq2_0 => (DType::TQ2_0, 37),
        }
    }

    const fn base(self) -> DType {
        self.row().0
    }

    pub(crate) const fn file_type(self) -> u32 {
        self.row().1
    }
}

/// What becomes of one tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) info: &'a TensorInfo,
    /// `None` leaves it as it is.
    pub(crate) target: Option<DType>,
    /// What it would have become if its rows were whole blocks.
    pub(crate) unfit: Option<DType>,
}

/// Plans every tensor, in the order in which they will be written: that of llama.cpp, by layer and
/// name. `pure` gives every matrix the format that the recipe is named after.
pub(crate) fn plan(file: &File, recipe: Recipe, pure: bool) -> Vec<Plan<'_>> {
    let mut infos: Vec<&TensorInfo> = file.tensors().iter().collect();
    infos.sort_by_key(|info| (layer(info.name()), info.name()));
    let mut chooser = Chooser::new(file, recipe);
    let mut plans = Vec::with_capacity(infos.len());
    for info in infos {
        let mut plan = Plan { info, target: None, unfit: None };
        if is_matrix(info) {
            let base = recipe.base();
            let wanted = if pure || !base.is_block() { base } else { chooser.choose(info) };
            let target = fitting(wanted, info.shape()[0]);
            plan.unfit = (target != wanted).then_some(wanted);
            plan.target = (info.dtype().ok() != Some(target)).then_some(target);
        }
        plans.push(plan);
    }
    plans
}

/// The layer of a tensor `blk.<layer>.…`. Others come first.
fn layer(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Whether a tensor is a matrix of weights, which can be quantized.
fn is_matrix(info: &TensorInfo) -> bool {
    /// Small, or what they compute is too sensitive.
    const KEPT: [&str; 12] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "position_embd.weight",
        "token_types.weight",
        "ssm_conv1d.weight",
        "shortconv.conv.weight",
        "attn_rel_b.weight",
        "time_mix_",
        ".position_embd.",
    ];
    let name = info.name();
    let integers = matches!(info.dtype(), Ok(DType::I32 | DType::U8));
    name.ends_with("weight")
        && info.shape().iter().skip(1).any(|&dim| dim > 1)
        && !integers
        && !KEPT.iter().any(|part| name.contains(part))
}

/// The format, or the next one whose blocks a row of `elems` fills.
fn fitting(wanted: DType, elems: usize) -> DType {
    let fits = |dtype: &DType| dtype.row_bytes(elems).is_some();
    let substitute = match wanted {
        DType::Q6_K => DType::Q8_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q4_K => DType::Q5_0,
        _ => DType::Q4_0,
    };
    [wanted, substitute].into_iter().find(fits).unwrap_or(DType::F16)
}

/// Walks over the tensors in order and gives each its type.
struct Chooser {
    recipe: Recipe,
    layers: u64,
    experts: u64,
    /// Query heads for each key/value head.
    heads_per_kv: u64,
    /// 80 layers with grouped heads: `attn_v` is an eighth of `attn_q`, and cheap to keep better.
    is_70b: bool,
    /// The token embedding is the output matrix as well.
    tied: bool,
    attn_v_count: u64,
    attn_v_seen: u64,
    ffn_down_seen: u64,
}

impl Chooser {
    fn new(file: &File, recipe: Recipe) -> Self {
        let metadata = file.metadata();
        let architecture = metadata.str("general.architecture").unwrap_or_default();
        // Some models have a number for each layer; the first one counts.
        let number = |key: &str| {
            let key = format!("{architecture}.{key}");
            let first = || metadata.u64_array_opt(&key).ok()??.first().copied();
            metadata.u64_opt(&key).ok().flatten().or_else(first).unwrap_or(0)
        };
        let (heads, kv_heads) = (number("attention.head_count"), number("attention.head_count_kv"));
        let layers = number("block_count");
        let v_names = ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"];
        let is_v = |info: &&TensorInfo| v_names.iter().any(|part| info.name().contains(part));
        Self {
            recipe,
            layers,
            experts: number("expert_count"),
            heads_per_kv: heads.checked_div(kv_heads).unwrap_or(0),
            is_70b: layers == 80
                && (architecture == "qwen2" || architecture == "llama" && heads != kv_heads),
            tied: file.tensor_opt("output.weight").is_none(),
            attn_v_count: file.tensors().iter().filter(is_v).count() as u64,
            attn_v_seen: 0,
            ffn_down_seen: 0,
        }
    }

    /// The type for a matrix, as if its rows were whole blocks of any format.
    fn choose(&mut self, info: &TensorInfo) -> DType {
        let (name, base) = (info.name(), self.recipe.base());
        if name == "output.weight" || self.tied && name == "token_embd.weight" {
            let fits = base.row_bytes(info.shape()[0]).is_some();
            return if base == DType::Q8_0 || !fits { DType::Q8_0 } else { DType::Q6_K };
        }
        if matches!(name, "token_embd.weight" | "per_layer_token_embd.weight") {
            return if base == DType::TQ2_0 { DType::Q4_K } else { base };
        }
        if name.contains("attn_v.weight") {
            self.attn_v()
        } else if name.contains("attn_k.weight") {
            if self.experts == 8 { DType::Q8_0 } else { base }
        } else if name.contains("attn_q.weight") {
            base
        } else if name.contains("ffn_down") {
            self.ffn_down(name)
        } else if name.contains("attn_output.weight") {
            self.attn_output()
        } else if name.contains("attn_qkv.weight") {
            match self.recipe {
                Recipe::Q3KM | Recipe::Q3KL => DType::Q4_K,
                Recipe::Q4KM => DType::Q5_K,
                Recipe::Q5KM => DType::Q6_K,
                _ => base,
            }
        } else {
            base
        }
    }

    fn attn_v(&mut self) -> DType {
        let at = self.attn_v_seen;
        self.attn_v_seen += 1;
        if self.experts == 8 {
            return DType::Q8_0;
        }
        let dtype = match self.recipe {
            Recipe::Q2K if self.heads_per_kv >= 4 => DType::Q4_K,
            Recipe::Q2K => DType::Q3_K,
            Recipe::Q3KM if at < 2 => DType::Q5_K,
            Recipe::Q3KM => DType::Q4_K,
            Recipe::Q3KL => DType::Q5_K,
            Recipe::Q4KM | Recipe::Q5KM if more_bits(at, self.attn_v_count) => DType::Q6_K,
            Recipe::Q4KS if at < 4 => DType::Q5_K,
            other => other.base(),
        };
        let small = matches!(dtype, DType::Q3_K | DType::Q4_K);
        if self.is_70b && small { DType::Q5_K } else { dtype }
    }

    fn ffn_down(&mut self, name: &str) -> DType {
        let counted = self.ffn_down_seen;
        self.ffn_down_seen += 1;
        // Experts may come in any number for each layer.
        let at = if self.experts > 1 { layer(name).unwrap_or(counted) } else { counted };
        match self.recipe {
            Recipe::Q2K => DType::Q3_K,
            Recipe::Q3KM if at < self.layers / 16 => DType::Q5_K,
            Recipe::Q3KM => DType::Q4_K,
            Recipe::Q3KL => DType::Q5_K,
            Recipe::Q4KM | Recipe::Q5KM if more_bits(at, self.layers) => DType::Q6_K,
            Recipe::Q4KS if at < self.layers / 8 => DType::Q5_K,
            other => other.base(),
        }
    }

    fn attn_output(&self) -> DType {
        let few = matches!(
            self.recipe,
            Recipe::Q2K | Recipe::Q3KS | Recipe::Q3KM | Recipe::Q4KS | Recipe::Q4KM
        );
        match self.recipe {
            _ if self.experts == 8 && few => DType::Q5_K,
            other if self.experts == 8 => other.base(),
            Recipe::Q2K => DType::Q3_K,
            Recipe::Q3KM => DType::Q4_K,
            Recipe::Q3KL => DType::Q5_K,
            other => other.base(),
        }
    }
}

/// The first and the last eighth of the layers, and every third between them.
const fn more_bits(layer: u64, layers: u64) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= layers.saturating_mul(7) / 8 || (layer - eighth) % 3 == 2
}

#[cfg(test)]
mod tests;
