// Kernels that each break one rule, and a twin that does not. Compiled for compute_80.

typedef unsigned int u32;

__device__ inline u32 shared_at(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Reverses 64 values through shared memory; `fixed` puts the barrier where it belongs.
extern "C" __global__ void reverse(const float *in, float *out, int fixed) {
  __shared__ float s[64];
  s[threadIdx.x] = in[threadIdx.x];
  if (fixed) __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}

// A second round overwrites what other warps may still read.
extern "C" __global__ void overwrite(const float *in, float *out, int fixed) {
  __shared__ float s[64];
  for (int round = 0; round < 2; round++) {
    s[threadIdx.x] = in[threadIdx.x] + round;
    __syncthreads();
    out[threadIdx.x] = s[63 - threadIdx.x];
    if (fixed) __syncthreads();
  }
}

// The same within a warp.
extern "C" __global__ void rotate(const float *in, float *out, int fixed) {
  __shared__ float s[32];
  s[threadIdx.x] = in[threadIdx.x];
  if (fixed) __syncwarp();
  out[threadIdx.x] = s[(threadIdx.x + 1) & 31];
}

extern "C" __global__ void one_past_the_end(const float *in, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) out[i] = in[i < n ? i : n - 1];
}

extern "C" __global__ void misaligned(const char *in, float *out, int by) {
  out[threadIdx.x] = *(const float *)(in + 4 * threadIdx.x + by);
}

extern "C" __global__ void unwritten_shared(float *out, int n) {
  __shared__ float s[64];
  if (threadIdx.x < n) s[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x ^ 1];
}

extern "C" __global__ void unwritten_local(float *out, int n, int at) {
  float values[16];
  for (int i = 0; i < n; i++) values[i] = i;
  out[threadIdx.x] = values[at];
}

extern "C" __global__ void divergent_barrier(float *out, int n) {
  if (threadIdx.x < n) __syncthreads();
  out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void early_exit(float *out, int n) {
  if (threadIdx.x >= n) return;
  __syncthreads();
  out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void missing_wait(const float4 *in, float4 *out, int fixed) {
  __shared__ float4 s[32];
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_at(s + threadIdx.x)),
               "l"(in + threadIdx.x));
  asm volatile("cp.async.commit_group;");
  if (fixed) asm volatile("cp.async.wait_group 0;" ::: "memory");
  out[threadIdx.x] = s[threadIdx.x];
}

// Two copies are in flight, and one wait is for the older one only.
extern "C" __global__ void short_wait(const float4 *in, float4 *out, int use_second) {
  __shared__ float4 s[64];
  for (int i = 0; i < 2; i++) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
                     shared_at(s + 32 * i + threadIdx.x)),
                 "l"(in + 32 * i + threadIdx.x));
    asm volatile("cp.async.commit_group;");
  }
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  out[threadIdx.x] = s[32 * use_second + threadIdx.x];
}

// After the wait a barrier is needed, for the copies of other warps.
extern "C" __global__ void copied_by_others(const float4 *in, float4 *out, int fixed) {
  __shared__ float4 s[64];
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_at(s + threadIdx.x)),
               "l"(in + threadIdx.x));
  asm volatile("cp.async.wait_all;" ::: "memory");
  if (fixed) __syncthreads();
  out[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void wrong_mask(float *out, int lanes) {
  float v = threadIdx.x;
  if (threadIdx.x < lanes) v += __shfl_xor_sync(0xffffffffu, v, 1);
  out[threadIdx.x] = v;
}

extern "C" __global__ void spin(volatile int *flag, float *out) {
  while (*flag == 0) {
  }
  out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void assertion(float *out, int bad) {
  if (threadIdx.x == bad) asm volatile("trap;");
  out[threadIdx.x] = 1.0f;
}
