// Every function of the mathematics library that a kernel may call, at x[i] and y[i]; out[f, n].
// Compiled for compute_70.

extern "C" __global__ void math(const float *xs, const float *ys, float *out, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float x = xs[i], y = ys[i];
  int f = 0;
#define PUT(v) out[f++ * n + i] = (v)
  PUT(expf(x));
  PUT(exp2f(x));
  PUT(logf(fabsf(x)));
  PUT(log2f(fabsf(x)));
  PUT(log10f(fabsf(x)));
  PUT(log1pf(fabsf(x)));
  PUT(expm1f(x));
  PUT(powf(fabsf(x), y));
  PUT(sinf(x * 1000.0f));
  PUT(cosf(x * 100000.0f));
  PUT(tanf(x));
  PUT(atanf(x));
  PUT(atan2f(x, y));
  PUT(sinhf(x));
  PUT(coshf(x));
  PUT(tanhf(x));
  PUT(cbrtf(x));
  PUT(hypotf(x, y));
  PUT(fmodf(x, y));
  PUT(rsqrtf(fabsf(x)));
  PUT(roundf(x));
  PUT(fdimf(x, y));
  PUT((float)(exp((double)x) - log(fabs((double)y)) * sin((double)x)));
  PUT((float)(long long)(x * 1e6f));
  PUT((float)((int)(x * 100.0f) / ((int)(y * 10.0f) | 1)));
  PUT((float)((long long)(x * 1e6f) % ((long long)(y * 1e3f) | 1)));
#undef PUT
}
