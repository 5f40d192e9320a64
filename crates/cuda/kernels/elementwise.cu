// Ops on single elements, on f32 operands of any strides; outputs are dense.
//
// The kernel of op X is `op_X`: add, sub, mul, div; swiglu, geglu_tanh, geglu_erf (the gate is `a`); and the ops of one operand: silu,
// gelu_tanh, gelu_erf, exp, neg, scale, soft_cap, tanh, sigmoid, relu, sqrt, copy.
//
// Grid (any; ceil(elems / 1024) suits); 256 threads; no shared memory; the threads share the elements.
// When every operand is dense (`dense` != 0) elements are read and written four at a time, from 16-byte
// aligned addresses; the strides are not looked at. Otherwise axis 0 is the slowest of four; an operand
// of fewer axes has leading sizes of 1. Strides are in elements and may be 0.
//
// Exponentials are those of the precise library: within two units in the last place.

#include "intrinsics.cuh"

struct ElementArgs {
    const float* a;
    const float* b;  // not used by ops of one operand
    float* out;
    i64 elems;
    i64 a_strides[4];
    i64 b_strides[4];
    int sizes[4];
    float parameter;  // factor of `scale`, cap of `soft_cap`
    int dense;
};

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

DEVICE float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

DEVICE float gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f)); }

// NaN stays NaN.
DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Two-operand ops read `b`; `TWO` says whether it exists.
template <bool TWO, class Op>
DEVICE void each(const ElementArgs& args, Op op) {
    const i64 step = (i64)gridDim.x * 256;
    const i64 first = (i64)blockIdx.x * 256 + threadIdx.x;
    if (args.dense) {
        const i64 quads = args.elems / 4;
        for (i64 i = first; i < quads; i += step) {
            const float4 a = ((const float4*)args.a)[i];
            float4 b = a;
            if (TWO) b = ((const float4*)args.b)[i];
            ((float4*)args.out)[i] = make_float4(op(a.x, b.x), op(a.y, b.y), op(a.z, b.z), op(a.w, b.w));
        }
        const i64 i = 4 * quads + first;
        if (i < args.elems) args.out[i] = op(args.a[i], TWO ? args.b[i] : 0.0f);
        return;
    }
    for (i64 i = first; i < args.elems; i += step) {
        const float a = args.a[strided(i, args.elems, args.sizes, args.a_strides)];
        args.out[i] = op(a, TWO ? args.b[strided(i, args.elems, args.sizes, args.b_strides)] : 0.0f);
    }
}

#define BINARY(NAME, VALUE)                                                                     \
    extern "C" __global__ void __launch_bounds__(256) NAME(const ElementArgs args) {            \
        each<true>(args, [](float a, float b) { return VALUE; });                               \
    }
#define UNARY(NAME, VALUE)                                                                      \
    extern "C" __global__ void __launch_bounds__(256) NAME(const ElementArgs args) {            \
        const float parameter = args.parameter;                                                 \
        (void)parameter;                                                                        \
        each<false>(args, [=](float a, float) { return VALUE; });                               \
    }

BINARY(op_add, a + b)
BINARY(op_sub, a - b)
BINARY(op_mul, a * b)
BINARY(op_div, a / b)
BINARY(op_swiglu, silu(a) * b)
BINARY(op_geglu_tanh, gelu_tanh(a) * b)
BINARY(op_geglu_erf, gelu_erf(a) * b)
UNARY(op_silu, silu(a))
UNARY(op_gelu_tanh, gelu_tanh(a))
UNARY(op_gelu_erf, gelu_erf(a))
UNARY(op_exp, expf(a))
UNARY(op_neg, -a)
UNARY(op_scale, a * parameter)
UNARY(op_soft_cap, parameter * tanhf(a / parameter))
UNARY(op_tanh, tanhf(a))
UNARY(op_sigmoid, sigmoid(a))
UNARY(op_relu, relu(a))
UNARY(op_sqrt, sqrtf(a))
UNARY(op_copy, a)
