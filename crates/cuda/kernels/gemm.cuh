// What the tiled products of packed f16 activations with weights have in common.
//
//     out[split][row, col] = sum over the split's slabs of x[row, k] * w[expert][col, k]
//
// Activations come from `pack_f16_*`: f16, rows of whole slabs with zeros past `k`, each
// row scaled by a power of two. Weights are scaled by a power of two from the largest magnitude of the
// tensor. Both scales are undone, exactly, on the f32 sums: neither operand can leave the range of f16,
// and what is rounded is rounded by at most 2^-11 of itself or 2^-39 of the largest of its row.
#ifndef GEMM_CUH
#define GEMM_CUH

#include "dequant.cuh"

// A tile of rows: `rows` rows of expert `expert` start at output row `base_row`; this is tile number
// `tile` of them.
struct Tile {
    int expert, base_row, rows, tile;
};

struct GemmArgs {
    const u16* x;          // packed activations, [.., x_stride]
    const float* x_scale;  // [..], from packing
    const u8* w;           // row 0 of expert 0
    const u32* w_max;      // bits of the largest magnitude of the weights, or null: scale 1
    float* out;            // [splits][plane]
    const Tile* tiles;     // one for each blockIdx.x, or null: rows 0 to m of expert 0
    const int* row_ids;    // packed row of each output row, or null: the same
    i64 w_row_bytes;
    i64 w_expert_bytes;
    i64 plane;             // elements of the output
    int m, n, k;
    int x_stride;          // elements between packed rows: k in whole slabs
};

// The tile of this block, and where its rows are.
struct Work {
    int expert, first, rows;  // `rows` of this tile, of which `first` is the output row of the first
    int col;
    int slab, slab_end;
};

// `Args` is GemmArgs or GemmI8Args.
template <int BM, int BN, class Args>
DEVICE Work work_of(const Args& args) {
    Tile tile = {0, 0, args.m, (int)blockIdx.x};
    if (args.tiles) tile = args.tiles[blockIdx.x];
    Work work;
    work.expert = tile.expert;
    work.first = tile.base_row + tile.tile * BM;
    work.rows = min(BM, tile.rows - tile.tile * BM);
    work.col = blockIdx.y * BN;
    const int slabs = (args.k + SLAB - 1) / SLAB;
    work.slab = (int)((i64)slabs * blockIdx.z / gridDim.z);
    work.slab_end = (int)((i64)slabs * (blockIdx.z + 1) / gridDim.z);
    return work;
}

// Packed row of row `r` of the tile. Rows past the end repeat the last one: their sums are dropped.
template <class Args>
DEVICE i64 packed_row(const Args& args, const Work& work, int r) {
    const int row = work.first + min(r, work.rows - 1);
    return args.row_ids ? args.row_ids[row] : row;
}

// Column `c` of the tile as a row of weights; columns past the end repeat the last one.
template <class Args>
DEVICE const u8* weight_row(const Args& args, const Work& work, int c) {
    const int col = min(work.col + c, args.n - 1);
    return args.w + work.expert * args.w_expert_bytes + col * args.w_row_bytes;
}

// A sum without the scales of its operands. The smaller one goes first: a sum is a number of moderate
// size, which the larger one alone could take out of the range of f32 although the result is inside.
DEVICE float unscaled(float sum, float x_scale, float w_scale) {
    return sum * fminf(x_scale, w_scale) * fmaxf(x_scale, w_scale);
}

DEVICE Pow2 weight_pow2(const GemmArgs& args) {
    Pow2 one = {1.0f, 1.0f};
    return args.w_max ? pow2_of(*args.w_max) : one;
}

#endif
