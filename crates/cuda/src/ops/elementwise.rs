//! Ops on single elements.

use fucina_accel::{Activation, Binary, BinaryOp, Decline, Glu, Operand, Unary, UnaryOp};

use super::{Kernel, Site, int, long};
use crate::driver::Arguments;
use crate::modules::ELEMENTWISE;
use crate::sys::DevicePtr;

pub(super) fn takes_unary(op: &Unary<'_>) -> Result<(), Decline> {
    name_of(op.op).map(|_| ())
}

fn name_of(op: UnaryOp) -> Result<(&'static str, f32), Decline> {
    Ok(match op {
        UnaryOp::Activation(activation) => match activation {
            Activation::Silu => ("op_silu", 0.0),
            Activation::GeluTanh => ("op_gelu_tanh", 0.0),
            Activation::GeluErf => ("op_gelu_erf", 0.0),
            _ => return Err(Decline::UnsupportedOp),
        },
        UnaryOp::Exp => ("op_exp", 0.0),
        UnaryOp::Neg => ("op_neg", 0.0),
        UnaryOp::Scale(factor) => ("op_scale", factor),
        UnaryOp::SoftCap(cap) => ("op_soft_cap", cap),
        UnaryOp::Tanh => ("op_tanh", 0.0),
        UnaryOp::Sigmoid => ("op_sigmoid", 0.0),
        UnaryOp::Relu => ("op_relu", 0.0),
        UnaryOp::Sqrt => ("op_sqrt", 0.0),
        UnaryOp::Copy => ("op_copy", 0.0),
        _ => return Err(Decline::UnsupportedOp),
    })
}

pub(super) fn unary(site: &mut Site<'_, '_>, op: &Unary<'_>) -> Result<(), Decline> {
    let (name, parameter) = name_of(op.op)?;
    each(site, name, &op.x, None, parameter)
}

pub(super) fn binary(site: &mut Site<'_, '_>, op: &Binary<'_>) -> Result<(), Decline> {
    let name = match op.op {
        BinaryOp::Add => "op_add",
        BinaryOp::Sub => "op_sub",
        BinaryOp::Mul => "op_mul",
        BinaryOp::Div => "op_div",
        _ => return Err(Decline::UnsupportedOp),
    };
    each(site, name, &op.a, Some(&op.b), 0.0)
}

pub(super) fn glu(site: &mut Site<'_, '_>, op: &Glu<'_>) -> Result<(), Decline> {
    let name = match op.activation {
        Activation::Silu => "op_swiglu",
        Activation::GeluTanh => "op_geglu_tanh",
        Activation::GeluErf => "op_geglu_erf",
        _ => return Err(Decline::UnsupportedOp),
    };
    each(site, name, &op.gate, Some(&op.up), 0.0)
}

fn each(
    site: &mut Site<'_, '_>,
    name: &'static str,
    a: &Operand<'_>,
    b: Option<&Operand<'_>>,
    parameter: f32,
) -> Result<(), Decline> {
    let at_a = site.input(0);
    let at_b = if b.is_some() { site.input(1) } else { 0 };
    let aligned = (at_a | at_b).is_multiple_of(16);
    let dense = aligned && a.is_dense() && b.is_none_or(Operand::is_dense);
    let arguments = Arguments::new().ptr(at_a).ptr(at_b).ptr(site.out).long(long(a.elems()));
    let none = [0; 4];
    let arguments = strides(a).into_iter().fold(arguments, Arguments::long);
    let arguments = b.map_or(none, strides).into_iter().fold(arguments, Arguments::long);
    let arguments = sizes(a).into_iter().fold(arguments, Arguments::int);
    let arguments = arguments.float(parameter).int(i32::from(dense));
    let grid = [a.elems().div_ceil(1024).min(1 << 20), 1, 1];
    site.launch(Kernel::new(ELEMENTWISE, name), grid, 256, arguments)
}

/// Strides of an operand that is seen with four axes.
pub(super) fn strides(operand: &Operand<'_>) -> [i64; 4] {
    let strides = operand.strides();
    let mut all = [0; 4];
    for (to, &stride) in all[4 - strides.len()..].iter_mut().zip(strides.iter()) {
        *to = long(stride);
    }
    all
}

/// Sizes of an operand that is seen with four axes.
pub(super) fn sizes(operand: &Operand<'_>) -> [i32; 4] {
    let shape = operand.shape();
    let mut all = [1; 4];
    for (to, &size) in all[4 - shape.len()..].iter_mut().zip(shape.iter()) {
        *to = int(size);
    }
    all
}

/// An operand as dense f32 from a 16-byte boundary on: itself, or a copy.
pub(super) fn dense_f32(
    site: &mut Site<'_, '_>,
    index: usize,
    operand: &Operand<'_>,
) -> Result<DevicePtr, Decline> {
    use fucina_dtype::DType;

    let from = site.input(index);
    let is_f32 = operand.dtype() == DType::F32;
    if is_f32 && operand.is_dense() && from.is_multiple_of(16) {
        return Ok(from);
    }
    let to = site.scratch(operand.elems() * 4)?;
    let elems = operand.elems();
    let grid = [elems.div_ceil(1024).min(1 << 20), 1, 1];
    let (kernel, arguments) = if is_f32 {
        let arguments = Arguments::new().ptr(from).ptr(0).ptr(to).long(long(elems));
        let arguments = strides(operand).into_iter().fold(arguments, Arguments::long);
        let arguments = [0; 4].into_iter().fold(arguments, Arguments::long);
        let arguments = sizes(operand).into_iter().fold(arguments, Arguments::int);
        (Kernel::new(ELEMENTWISE, "op_copy"), arguments.float(0.0).int(0))
    } else {
        let name = if operand.dtype() == DType::F16 { "copy_f16" } else { "copy_bf16" };
        let arguments = Arguments::new().ptr(from).ptr(to).long(long(elems));
        let arguments = strides(operand).into_iter().fold(arguments, Arguments::long);
        let arguments = sizes(operand).into_iter().fold(arguments, Arguments::int);
        (Kernel::new(crate::modules::MATMUL, name), arguments)
    };
    site.launch(kernel, grid, 256, arguments)?;
    Ok(to)
}
