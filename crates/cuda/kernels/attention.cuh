// What the attention kernels have in common.
//
//     out[i, h] = sum over visible j of softmax_j(cap(scale * q[i, h] . k[j, g])) * v[j, g],
//     g = h / group, group = heads / kv_heads
//
// The `t * group` pairs (query, head) of one group are the *rows* of a problem of their own: row r is query
// r / group and head g * group + r % group, so that heads that share keys also share their loads.
// Key j is visible to query i, at position p = q_offset + i, if j <= p (causal) and j > p - window.
#ifndef ATTENTION_CUH
#define ATTENTION_CUH

#include "intrinsics.cuh"

struct AttentionArgs {
    const float* q;    // [t, heads, d]
    const void* k;     // [s, kv_heads, d]
    const void* v;     // [s, kv_heads, dv]
    float* out;        // [t, heads, dv]; with splits: [splits, t, heads, dv], sums that are not divided
    float* max_sum;    // [splits, t, heads, 2] or null without splits: largest score, sum of exponentials
    i64 q_strides[2];  // token, head; the last axis is dense in all three
    i64 k_strides[2];
    i64 v_strides[2];
    i64 q_offset;
    i64 window;  // 0: none
    int t, s, heads, group, d, dv;
    float scale;
    float soft_cap;  // 0: none
    int causal;
};

struct Range {
    int start, end;
};

// Keys that query `i` sees.
DEVICE Range visible(const AttentionArgs& args, int i) {
    const i64 next = args.q_offset + i + 1;
    Range range = {0, args.s};
    if (args.causal) range.end = (int)min((i64)args.s, next);
    if (args.window > 0) range.start = (int)min((i64)range.end, max(next - args.window, (i64)0));
    return range;
}

// Keys that any of the queries `first` to `last` sees: both ends grow with the query.
DEVICE Range visible_to(const AttentionArgs& args, int first, int last) {
    Range range = {visible(args, first).start, visible(args, last).end};
    return range;
}

// The part of `range` that split `blockIdx.z` takes, in whole tiles.
DEVICE Range part_of(Range range, int tile) {
    const int tiles = (range.end - range.start + tile - 1) / tile;
    Range part;
    part.start = range.start + (int)((i64)tiles * blockIdx.z / gridDim.z) * tile;
    part.end = min(range.end, range.start + (int)((i64)tiles * (blockIdx.z + 1) / gridDim.z) * tile);
    return part;
}

// cap * tanh(score / cap), from tanh(x) = 1 - 2 / (exp(2x) + 1): right to 2^-22 of the cap, which is what
// counts for a score.
DEVICE float cap_score(const AttentionArgs& args, float score) {
    if (args.soft_cap <= 0.0f) return score;
    const float e = exp2f(score * (2.8853900817779268f / args.soft_cap));
    return args.soft_cap * (1.0f - __fdividef(2.0f, e + 1.0f));
}

DEVICE float minus_infinity() { return __int_as_float(0xff800000); }

struct KeyF32 {
    typedef float T;
    static DEVICE float get(T x) { return x; }
};
struct KeyF16 {
    typedef u16 T;
    static DEVICE float get(T x) { return f16_to_f32(x); }
};

#endif
