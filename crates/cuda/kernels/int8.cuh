// Activations in 8 bits, and what the products with them have in common.
//
// `quantize_i8` stores each 32 activations as whole numbers from -127 to 127 and two f32: the scale, and
// the scale times their sum. A product of whole numbers is exact; what is rounded is each activation, by
// at most half of its block's scale, which is 1/254 of the block's largest magnitude. That is coarser
// than f16 (2^-11 of each element), so these kernels are a choice, not a default.
//
// With weights `factor * (q - zero)` or `factor * q - min`, a run of a block adds
//     factor * scale * sum(q x) - min * scale * sum(x)
#ifndef INT8_CUH
#define INT8_CUH

#include "gemm.cuh"

// Scale, and scale times sum, of 32 activations.
typedef float2 BlockScale;

struct GemmI8Args {
    const u32* x;           // whole numbers, [.., x_stride] bytes, from quantizing
    const BlockScale* x_scale;  // [.., x_stride / 32]
    const u8* w;            // row 0 of expert 0
    float* out;             // [splits][plane]
    const Tile* tiles;      // as in GemmArgs
    const int* row_ids;     // as in GemmArgs
    i64 w_row_bytes;
    i64 w_expert_bytes;
    i64 plane;              // elements of the output
    int m, n, k;
    int x_stride;           // bytes between rows of x: k in whole slabs
};

// Four bytes minus `ZERO` each, as signed bytes.
template <int ZERO>
DEVICE u32 signed_bytes(u32 q) {
    if (ZERO == 0) return q;
    if (ZERO == 128) return q ^ 0x80808080u;
    return ((q | 0x80808080u) - ZERO * 0x01010101u) ^ 0x80808080u;
}

#endif
