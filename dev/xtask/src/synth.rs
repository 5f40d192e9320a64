//! `cargo xtask synth-model`: a file in the shape of a real model, with random weights.
//!
//! Speed depends on shapes and formats, not on what the numbers mean, so such a file serves every
//! benchmark and needs no download. What it generates is noise.

mod blocks;
mod vocab;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use fucina_dtype::DType;
use fucina_gguf::{Data, Writer};
use fucina_testkit::Rng;

/// Which file to write.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Family of the model
    #[arg(long, value_enum, default_value = "qwen3")]
    arch: Arch,
    /// Its size: tiny, 0.6b, 1.7b, 4b; of qwen3moe tiny, 30b-a3b
    #[arg(long, default_value = "0.6b")]
    size: String,
    /// Format of the weights
    #[arg(long, value_enum, default_value = "q4_k_m")]
    format: Format,
    /// Where to write it
    #[arg(long)]
    out: PathBuf,
    /// Seed of the weights; the same seed gives the same file
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Arch {
    Qwen3,
    /// Qwen3 with experts
    Qwen3moe,
}

impl Arch {
    /// `general.architecture`.
    const fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen3moe => "qwen3moe",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Format {
    /// `Q4_K`, with `Q6_K` where it matters most, as llama.cpp mixes them
    #[value(name = "q4_k_m")]
    Q4KM,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "q8_0")]
    Q8,
    F16,
    Bf16,
}

impl Format {
    /// `general.file_type` of the format.
    const fn file_type(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::Q8 => 7,
            Self::Q4KM => 15,
            Self::Q6K => 18,
            Self::Bf16 => 32,
        }
    }

    /// The type of the matrix `role` in layer `layer` of `layers`.
    fn dtype(self, role: Role, layer: usize, layers: usize) -> DType {
        match (self, role) {
            (Self::Q4KM, Role::Embedding) => DType::Q6_K,
            (Self::Q4KM, Role::ValueOrDown) if gets_more_bits(layer, layers) => DType::Q6_K,
            (Self::Q4KM, _) => DType::Q4_K,
            (Self::Q6K, _) => DType::Q6_K,
            (Self::Q8, _) => DType::Q8_0,
            (Self::F16, _) => DType::F16,
            (Self::Bf16, _) => DType::BF16,
        }
    }
}

/// What a matrix is for, as far as the mix of formats distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Embedding,
    /// The value projection and the last matrix of the feed-forward part.
    ValueOrDown,
    Other,
}

/// The rule of the mix: the first and last eighth of the layers, and every third between them.
const fn gets_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The shape of a model of the family.
#[derive(Debug, Clone, Copy)]
struct Shape {
    arch: Arch,
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Elements inside the feed-forward block, or inside each expert.
    feed_forward: usize,
    experts: Option<Experts>,
    vocab: usize,
    context: usize,
}

/// Experts of each layer, and those that a token uses.
#[derive(Debug, Clone, Copy)]
struct Experts {
    count: usize,
    used: usize,
}

const TINY: Shape = Shape {
    arch: Arch::Qwen3,
    name: "tiny",
    layers: 2,
    hidden: 256,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    feed_forward: 512,
    experts: None,
    vocab: 512,
    context: 512,
};

const SHAPES: &[Shape] = &[
    TINY,
    qwen3("0.6b", 28, 1024, 16, 3072),
    qwen3("1.7b", 28, 2048, 16, 6144),
    qwen3("4b", 36, 2560, 32, 9728),
    Shape {
        arch: Arch::Qwen3moe,
        feed_forward: 256,
        experts: Some(Experts { count: 8, used: 2 }),
        ..TINY
    },
    Shape {
        arch: Arch::Qwen3moe,
        kv_heads: 4,
        experts: Some(Experts { count: 128, used: 8 }),
        ..qwen3("30b-a3b", 48, 2048, 32, 768)
    },
];

const fn qwen3(
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    feed_forward: usize,
) -> Shape {
    let (kv_heads, head_dim, vocab, context) = (8, 128, 151_936, 40_960);
    Shape {
        arch: Arch::Qwen3,
        name,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        feed_forward,
        experts: None,
        vocab,
        context,
    }
}

/// One tensor; dimensions are innermost first, as in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tensor {
    name: String,
    dtype: DType,
    dims: Vec<usize>,
}

/// Writes the file.
pub(crate) fn run(args: &Args) -> Result<()> {
    let shapes = || SHAPES.iter().filter(|shape| shape.arch == args.arch);
    let Some(shape) = shapes().find(|shape| shape.name == args.size) else {
        let names: Vec<&str> = shapes().map(|shape| shape.name).collect();
        bail!("no size {:?} of {}; there are {}", args.size, args.arch.name(), names.join(", "));
    };
    let begin = Instant::now();
    writer(args, shape)?.save(&args.out)?;
    let bytes = std::fs::metadata(&args.out)
        .with_context(|| format!("cannot look at {}", args.out.display()))?
        .len();
    println!(
        "{}: {:.1} MiB in {:.1} s",
        args.out.display(),
        bytes as f64 / f64::from(1 << 20),
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The file, not yet written: weights are made as they stream out.
fn writer(args: &Args, shape: &Shape) -> Result<Writer<'static>> {
    let mut writer = Writer::new();
    set_metadata(&mut writer, args, shape)?;
    let mut seeds = Rng::new(args.seed);
    for tensor in tensors(shape, args.format) {
        let seed = seeds.next_u64();
        let data = data(&tensor, seed);
        writer.tensor(&tensor.name, tensor.dtype, &tensor.dims, data)?;
    }
    Ok(writer)
}

/// Norm weights are ones, all others random.
fn data(tensor: &Tensor, seed: u64) -> Data<'static> {
    if tensor.dims.len() == 1 {
        return Data::from(blocks::ones(tensor.dims[0]));
    }
    const CHUNK_UNITS: usize = 4096;
    let dtype = tensor.dtype;
    let units = tensor.dims.iter().product::<usize>() / dtype.unit().0;
    Data::from_fn(move |out: &mut dyn Write| {
        let mut rng = Rng::new(seed);
        let mut chunk = Vec::new();
        for begin in (0..units).step_by(CHUNK_UNITS) {
            chunk.clear();
            blocks::append(dtype, CHUNK_UNITS.min(units - begin), &mut rng, &mut chunk);
            out.write_all(&chunk)?;
        }
        Ok(())
    })
}

/// Every tensor, in the order of the file. The output matrix is the embedding.
fn tensors(shape: &Shape, format: Format) -> Vec<Tensor> {
    let (hidden, queries) = (shape.hidden, shape.heads * shape.head_dim);
    let keys = shape.kv_heads * shape.head_dim;
    let mut tensors = Vec::new();
    let mut add = |name: String, dtype: DType, dims: &[usize]| {
        tensors.push(Tensor { name, dtype, dims: dims.to_vec() });
    };
    let embedding = format.dtype(Role::Embedding, 0, shape.layers);
    add("token_embd.weight".to_owned(), embedding, &[hidden, shape.vocab]);
    for layer in 0..shape.layers {
        let norms = [
            ("attn_norm", hidden),
            ("attn_q_norm", shape.head_dim),
            ("attn_k_norm", shape.head_dim),
            ("ffn_norm", hidden),
        ];
        let matrices = [
            ("attn_q", Role::Other, hidden, queries),
            ("attn_k", Role::Other, hidden, keys),
            ("attn_v", Role::ValueOrDown, hidden, keys),
            ("attn_output", Role::Other, queries, hidden),
        ];
        let feed_forward = [
            ("ffn_gate", Role::Other, hidden, shape.feed_forward),
            ("ffn_up", Role::Other, hidden, shape.feed_forward),
            ("ffn_down", Role::ValueOrDown, shape.feed_forward, hidden),
        ];
        for (name, len) in norms {
            add(format!("blk.{layer}.{name}.weight"), DType::F32, &[len]);
        }
        for (name, role, k, n) in matrices {
            let dtype = format.dtype(role, layer, shape.layers);
            add(format!("blk.{layer}.{name}.weight"), dtype, &[k, n]);
        }
        if let Some(Experts { count, .. }) = shape.experts {
            // Routers are never quantized.
            let router = format!("blk.{layer}.ffn_gate_inp.weight");
            add(router, DType::F32, &[hidden, count]);
        }
        for (name, role, k, n) in feed_forward {
            let dtype = format.dtype(role, layer, shape.layers);
            match shape.experts {
                None => add(format!("blk.{layer}.{name}.weight"), dtype, &[k, n]),
                Some(Experts { count, .. }) => {
                    add(format!("blk.{layer}.{name}_exps.weight"), dtype, &[k, n, count]);
                }
            }
        }
    }
    add("output_norm.weight".to_owned(), DType::F32, &[hidden]);
    tensors
}

fn set_metadata(writer: &mut Writer<'_>, args: &Args, shape: &Shape) -> Result<()> {
    let vocab = vocab::make(shape.vocab);
    let id = |from_end: usize| u32::try_from(shape.vocab - from_end);
    let count = |n: usize| u32::try_from(n);
    let arch = shape.arch.name();
    let key = |name: &str| format!("{arch}.{name}");
    match shape.experts {
        None => writer.set(&key("feed_forward_length"), count(shape.feed_forward)?)?,
        Some(experts) => writer
            .set(&key("expert_count"), count(experts.count)?)?
            .set(&key("expert_used_count"), count(experts.used)?)?
            .set(&key("expert_feed_forward_length"), count(shape.feed_forward)?)?,
    };
    writer
        .set("general.architecture", arch)?
        .set("general.name", format!("random weights, {arch} {}", shape.name))?
        .set("general.file_type", args.format.file_type())?
        .set("general.quantization_version", 2_u32)?
        .set(&key("block_count"), count(shape.layers)?)?
        .set(&key("context_length"), count(shape.context)?)?
        .set(&key("embedding_length"), count(shape.hidden)?)?
        .set(&key("attention.head_count"), count(shape.heads)?)?
        .set(&key("attention.head_count_kv"), count(shape.kv_heads)?)?
        .set(&key("attention.key_length"), count(shape.head_dim)?)?
        .set(&key("attention.value_length"), count(shape.head_dim)?)?
        .set(&key("attention.layer_norm_rms_epsilon"), 1e-6_f32)?
        .set(&key("rope.freq_base"), 1e6_f32)?
        .set("tokenizer.ggml.model", "gpt2")?
        .set("tokenizer.ggml.pre", "qwen2")?
        .set("tokenizer.ggml.tokens", vocab.tokens)?
        .set("tokenizer.ggml.token_type", vocab.types)?
        .set("tokenizer.ggml.merges", vocab.merges)?
        .set("tokenizer.ggml.padding_token_id", id(3)?)?
        .set("tokenizer.ggml.eos_token_id", id(1)?)?
        .set("tokenizer.ggml.add_bos_token", false)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(format: Format) -> Args {
        let (arch, size, out) = (Arch::Qwen3, "tiny".to_owned(), PathBuf::new());
        Args { arch, size, format, out, seed: 7 }
    }

    #[test]
    fn the_mix_gives_half_of_28_layers_more_bits() {
        let more: Vec<usize> = (0..28).filter(|&layer| gets_more_bits(layer, 28)).collect();
        assert_eq!(more, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
    }

    #[test]
    fn the_0_6b_shape_has_the_parameters_of_qwen3_0_6b() {
        let shape = SHAPES.iter().find(|shape| shape.name == "0.6b").unwrap();
        let tensors = tensors(shape, Format::Q4KM);
        let parameters: usize = tensors.iter().map(|t| t.dims.iter().product::<usize>()).sum();
        // The model card says 0.6 B in all and 0.44 B without the embedding.
        assert_eq!(parameters, 596_049_920);
        assert_eq!(parameters - 151_936 * 1024, 440_467_456);
        assert_eq!(tensors.len(), 310);
        let six_bit = tensors.iter().filter(|tensor| tensor.dtype == DType::Q6_K).count();
        assert_eq!(six_bit, 1 + 2 * 14);
    }

    #[test]
    fn the_30b_shape_has_the_parameters_of_qwen3_30b_a3b() {
        let shape = SHAPES.iter().find(|shape| shape.name == "30b-a3b").unwrap();
        let tensors = tensors(shape, Format::Q4KM);
        let of = |part: &str| -> usize {
            let parts = tensors.iter().filter(|tensor| tensor.name.contains(part));
            parts.map(|tensor| tensor.dims.iter().product::<usize>()).sum()
        };
        // The model card: 30.5 B in all, 29.9 B without the embedding. Its output matrix is one of
        // its own, ours is the embedding.
        let (all, experts, embedding) = (of(""), of("_exps"), of("token_embd"));
        assert_eq!(experts, 48 * 128 * 3 * 2048 * 768);
        assert_eq!((all + embedding + 50_000_000) / 100_000_000, 305);
        assert_eq!((all - embedding + 50_000_000) / 100_000_000, 299);
    }

    #[test]
    fn a_written_file_reads_back_with_everything_in_place() {
        let tiny = || SHAPES.iter().filter(|shape| shape.name == "tiny");
        assert_eq!(tiny().count(), Arch::value_variants().len());
        let formats = Format::value_variants().iter();
        for (format, shape) in formats.flat_map(|format| tiny().map(move |shape| (format, shape))) {
            let bytes = writer(&args(*format), shape).unwrap().to_bytes().unwrap();
            let file = fucina_gguf::File::from_bytes(bytes).unwrap();
            let arch = shape.arch.name();
            assert_eq!(file.metadata().str("general.architecture").unwrap(), arch);
            for tensor in tensors(shape, *format) {
                let data = file.tensor_data(file.tensor(&tensor.name).unwrap()).unwrap();
                let mut weights = vec![0.0; tensor.dims.iter().product()];
                tensor.dtype.decode(&data, &mut weights).unwrap();
                let small = weights.iter().all(|w| w.is_finite() && w.abs() <= 1.0);
                assert!(small, "{format:?} {}", tensor.name);
            }
        }
    }

    #[test]
    fn the_seed_decides_the_file() {
        let write = |seed| {
            let args = Args { seed, ..args(Format::Q4KM) };
            writer(&args, &SHAPES[0]).unwrap().to_bytes().unwrap()
        };
        assert_eq!(write(1), write(1));
        assert_ne!(write(1), write(2));
    }
}
