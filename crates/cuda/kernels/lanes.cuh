// What a lane of a warp takes of 256 consecutive elements of a row: two words of four elements each, so that
// the raw bytes of a block and the activations beside them are both read in whole lines.
#ifndef LANES_CUH
#define LANES_CUH

#include "dequant.cuh"

// Elements `at[run]` to `at[run] + 3` of a row, as unsigned bytes and their factors. `at[run]` is negative
// where the row has ended: such elements are not to be multiplied, for nothing times an infinity is NaN.
struct Lane {
    u32 q[2];
    Factors f[2];
    int at[2];
};

DEVICE u32 load_word(const u8* p) {
    u32 w[1];
    load_words(w, p);
    return w[0];
}

// Part of `lane` in the 256 elements from `256 * at` on.
template <class F>
DEVICE void load_lane(Lane& o, const u8* row, int at, int lane, int k);

template <>
DEVICE void load_lane<Q4_K>(Lane& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * Q4_K::BYTES;
    u32 head[4];
    load_quad(head, block);
    const u32 q = *(const u32*)(block + 16 + 4 * lane);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        o.q[run] = q >> 4 * run & 0x0f0f0f0fu;
        o.f[run] = group_factors(head, lane / 8 * 2 + run, 1.0f);
        o.at[run] = 256 * at + lane / 8 * 64 + 32 * run + lane % 8 * 4;
    }
}

template <>
DEVICE void load_lane<Q5_K>(Lane& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * Q5_K::BYTES;
    u32 head[4];
    load_quad(head, block);
    const u32 h = *(const u32*)(block + 16 + lane % 8 * 4);
    const u32 q = *(const u32*)(block + 48 + 4 * lane);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        const int g = lane / 8 * 2 + run;
        o.q[run] = (q >> 4 * run & 0x0f0f0f0fu) | (h >> g & 0x01010101u) << 4;
        o.f[run] = group_factors(head, g, 1.0f);
        o.at[run] = 256 * at + lane / 8 * 64 + 32 * run + lane % 8 * 4;
    }
}

template <>
DEVICE void load_lane<Q6_K>(Lane& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * Q6_K::BYTES;
    const int half = lane / 16, b = lane % 16 * 4;
    const u32 l = load_word(block + 4 * lane);
    const u32 h = load_word(block + 128 + 32 * half + b % 32) >> b / 32 * 2;
    const float d = load_f16(block + 208);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        const int first = 128 * half + 64 * run + b;
        o.q[run] = (l >> 4 * run & 0x0f0f0f0fu) | (h >> 4 * run & 0x03030303u) << 4;
        o.f[run].factor = d * (float)*(const i8*)(block + 192 + first / 16);
        o.at[run] = 256 * at + first;
    }
}

// Block `index` of 32 elements if the row has it. If not, some block, and `index` is negative.
template <class F>
DEVICE const u8* block_of_32(const u8* row, int& index, int k, float& d) {
    const bool inside = 32 * index < k;
    const u8* block = row + (inside ? (i64)index * F::BYTES : 0);
    index = inside ? index : -1;
    d = load_f16(block);
    return block;
}

template <>
DEVICE void load_lane<Q8_0>(Lane& o, const u8* row, int at, int lane, int k) {
#pragma unroll
    for (int run = 0; run < 2; run++) {
        int index = 8 * at + 4 * run + lane / 8;
        const u8* block = block_of_32<Q8_0>(row, index, k, o.f[run].factor);
        o.q[run] = load_word(block + 2 + lane % 8 * 4) ^ 0x80808080u;
        o.at[run] = 32 * index + lane % 8 * 4;
    }
}

template <>
DEVICE void load_lane<Q4_0>(Lane& o, const u8* row, int at, int lane, int k) {
    int index = 8 * at + lane / 4;
    float d;
    const u8* block = block_of_32<Q4_0>(row, index, k, d);
    const u32 q = load_word(block + 2 + lane % 4 * 4);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        o.q[run] = q >> 4 * run & 0x0f0f0f0fu;
        o.f[run].factor = d;
        o.at[run] = 32 * index + 16 * run + lane % 4 * 4;
    }
}

template <>
DEVICE void load_lane<Q5_0>(Lane& o, const u8* row, int at, int lane, int k) {
    int index = 8 * at + lane / 4;
    float d;
    const u8* block = block_of_32<Q5_0>(row, index, k, d);
    const u32 h = pack_halves(*(const u16*)(block + 2), *(const u16*)(block + 4));
    const u32 q = load_word(block + 6 + lane % 4 * 4);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        o.q[run] = (q >> 4 * run & 0x0f0f0f0fu) | fifth_bits(h >> (16 * run + lane % 4 * 4));
        o.f[run].factor = d;
        o.at[run] = 32 * index + 16 * run + lane % 4 * 4;
    }
}

template <>
DEVICE void load_lane<TQ2_0>(Lane& o, const u8* row, int at, int lane, int) {
    const u8* block = row + (i64)at * TQ2_0::BYTES;
    const int word = lane % 16;
    const u32 q = load_word(block + 4 * word) >> lane / 16 * 4;
    const float d = load_f16(block + 64);
#pragma unroll
    for (int run = 0; run < 2; run++) {
        o.q[run] = q >> 2 * run & 0x03030303u;
        o.f[run].factor = d;
        o.at[run] = 256 * at + word / 8 * 128 + 32 * (lane / 16 * 2 + run) + word % 8 * 4;
    }
}

#endif
