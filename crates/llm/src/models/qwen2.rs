//! Qwen2 and Qwen2.5: the plain block, with biases on the query, key and value projections. Halves
//! pair up in RoPE.

use fucina_runtime::Pairing;

use crate::error::Result;
use crate::loader::Loader;
use crate::models::Decoder;
use crate::models::blocks::{Sizes, Stack};
use crate::models::plain::Block;

pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes) -> Result<Box<dyn Decoder>> {
    Ok(Box::new(Stack::<Block>::load(loader, sizes, Pairing::Halves)?))
}
