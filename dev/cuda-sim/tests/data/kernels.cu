// Kernels that use what a GEMM, an attention or a reduction needs. Compiled for compute_80.
#include <cuda_fp16.h>

typedef unsigned int u32;

__device__ inline u32 shared_at(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// out[m, n] = a[m, k] b[n, k]^T in f16 with f32 sums; 32 x 32 tiles, two warps of 32 x 16, slabs of
// k = 32 in two buffers. Rows beyond m and n are copied as zeros; k is a multiple of 32.
extern "C" __global__ void gemm_mma(const half *a, const half *b, float *out, int m, int n, int k) {
  __shared__ __align__(16) half s[2][2][32][40];
  int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  int row0 = blockIdx.y * 32, col0 = blockIdx.x * 32;
  float sums[2][2][4] = {};
  auto copy = [&](int slab, int buffer) {
    for (int i = tid; i < 256; i += 64) {
      int side = i / 128, row = i % 128 / 4, at = i % 4 * 8;
      int from = (side ? col0 : row0) + row, limit = side ? n : m;
      const half *src = (side ? b : a) + (size_t)(from < limit ? from : 0) * k + slab * 32 + at;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                       shared_at(&s[buffer][side][row][at])),
                   "l"(src), "r"(from < limit ? 16 : 0));
    }
    asm volatile("cp.async.commit_group;");
  };
  int slabs = k / 32;
  copy(0, 0);
  for (int slab = 0; slab < slabs; slab++) {
    if (slab + 1 < slabs) {
      copy(slab + 1, (slab + 1) % 2);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    auto &t = s[slab % 2];
    for (int kk = 0; kk < 32; kk += 16) {
      u32 fa[2][4], fb[4];
      for (int i = 0; i < 2; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3])
                     : "r"(shared_at(&t[0][16 * i + lane % 16][kk + lane / 16 * 8])));
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(fb[0]), "=r"(fb[1]), "=r"(fb[2]), "=r"(fb[3])
                   : "r"(shared_at(
                       &t[1][16 * warp + lane / 16 * 8 + lane % 8][kk + lane / 8 % 2 * 8])));
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
          asm volatile(
              "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
              "{%8,%9}, {%0,%1,%2,%3};"
              : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
              : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]), "r"(fb[2 * j]),
                "r"(fb[2 * j + 1]));
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int e = 0; e < 4; e++) {
        int row = row0 + 16 * i + lane / 4 + e / 2 * 8;
        int col = col0 + 16 * warp + 8 * j + lane % 4 * 2 + e % 2;
        if (row < m && col < n) out[(size_t)row * n + col] = sums[i][j][e];
      }
}

// Sum of n values: shuffles within warps, shared memory between them, an atomic between blocks.
extern "C" __global__ void sum(const int *in, int *out, int n) {
  __shared__ int parts[32];
  int v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
  for (int d = 16; d; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    if (threadIdx.x == 0) atomicAdd(out, v);
  }
}

// Counts values below 256 in shared memory, then in global memory.
extern "C" __global__ void histogram(const unsigned char *in, u32 *out, int n) {
  __shared__ u32 counts[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&counts[in[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    if (counts[i]) atomicAdd(&out[i], counts[i]);
}

// The last block to finish adds the parts: a fence and a counter, no waiting.
__device__ u32 finished = 0;
extern "C" __global__ void last_block(const float *in, float *parts, float *out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    float v = 0;
    for (int i = 0; i < 64; i++) v += in[blockIdx.x * 64 + i];
    *(volatile float *)&parts[blockIdx.x] = v;
    __threadfence();
    last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    float v = 0;
    for (int i = 0; i < gridDim.x; i++) v += *(volatile float *)&parts[i];
    *out = v;
  }
}

// One warp produces for another, with two named barriers and one buffer.
extern "C" __global__ void produce(const int *in, int *out, int rounds) {
  __shared__ int buffer[32];
  int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (int i = 0; i < rounds; i++) {
      asm volatile("barrier.sync 1, 64;" ::: "memory");
      buffer[lane] = in[32 * i + lane] * 3;
      asm volatile("barrier.arrive 2, 64;" ::: "memory");
    }
  } else {
    for (int i = 0; i < rounds; i++) {
      asm volatile("barrier.arrive 1, 64;" ::: "memory");
      asm volatile("barrier.sync 2, 64;" ::: "memory");
      out[32 * i + lane] = buffer[31 - lane];
    }
  }
}

__device__ __noinline__ float poly(float x, const float *c, int n) {
  float v = 0;
  for (int i = n - 1; i >= 0; i--) v = v * x + c[i];
  return v;
}

__constant__ float table[4] = {1.0f, -2.0f, 0.5f, 3.0f};

// Lanes take different ways: a switch, a call, an array with computed indices, a loop of their own.
extern "C" __global__ void ways(const float *in, float *out) {
  int i = threadIdx.x;
  float x = in[i], v = 0;
  float own[8];
  for (int j = 0; j < 8; j++) own[(j + i) % 8] = x + j;
  switch (i % 7) {
    case 0: v = poly(x, table, 4); break;
    case 1: v = own[i % 8]; break;
    case 2: v = sqrtf(fabsf(x)); break;
    case 3: v = x > 0 ? __expf(x) : sinf(x * 1000.0f); break;
    case 4: v = __ballot_sync(__activemask(), x > 0) ? 4.0f : 4.0f; break;
    case 5: v = fmodf(x, 0.25f); break;
    default:
      for (int j = 0; j < i; j++) v += own[j % 8];
  }
  out[i] = v;
}
