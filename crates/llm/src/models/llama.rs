//! Llama 2 and 3, and what shares their tensors (Mistral, SmolLM): the plain block. Neighbours pair
//! up in RoPE: the files store the query and key rows in that order. Llama 3.1 files carry its
//! frequency scaling as the tensor `rope_freqs.weight`.

use fucina_runtime::Pairing;

use crate::error::Result;
use crate::loader::Loader;
use crate::models::Decoder;
use crate::models::blocks::{Sizes, Stack};
use crate::models::plain::Block;

pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes) -> Result<Box<dyn Decoder>> {
    Ok(Box::new(Stack::<Block>::load(loader, sizes, Pairing::Interleaved)?))
}
