#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/load.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "tests/kernels/cuda/emu/language_kernels.h"

namespace bitshard::cuda {
namespace {

__global__ void Ids(uint32_t* out) {
  const unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + 16 * threadIdx.y + 256 * threadIdx.z;
  const unsigned place = blockIdx.x + 16 * blockIdx.y + 256 * blockIdx.z;
  out[block * blockDim.x * blockDim.y * blockDim.z + in_block] = thread | place << 12;
}

__global__ void WarpWords(uint32_t* out, const uint32_t* v) {
  const int t = threadIdx.x;
  const uint32_t value = v[t];
  out[0 * 32 + t] = __shfl_sync(~0u, value, 5, 8);
  out[1 * 32 + t] = __shfl_xor_sync(~0u, value, 9, 16);
  out[2 * 32 + t] = __shfl_up_sync(~0u, value, 3, 16);
  out[3 * 32 + t] = __shfl_down_sync(~0u, value, 3, 8);
  out[4 * 32 + t] = __ballot_sync(~0u, value & 1);
  out[5 * 32 + t] = __reduce_add_sync(~0u, value);
  out[6 * 32 + t] = __reduce_min_sync(~0u, value);
  out[7 * 32 + t] = static_cast<uint32_t>(__reduce_max_sync(~0u, static_cast<int>(value)));
  out[8 * 32 + t] = static_cast<uint32_t>(__any_sync(~0u, value == 7));
  out[9 * 32 + t] = static_cast<uint32_t>(__all_sync(~0u, value != 7));
}

__global__ void Reductions(float* out, const float* v) {
  const int t = threadIdx.x;
  float sum = v[t];
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(~0u, sum, offset);
  out[t] = WarpSum(v[t]);
  out[32 + t] = sum;
  out[64 + t] = WarpMax(v[t]);
}

__global__ void Multiply(MmaKind kind, uint32_t* d, const uint32_t* a, const uint32_t* b,
                         const uint32_t* c) {
  const int t = threadIdx.x;
  const uint32_t fa[4] = {a[4 * t], a[4 * t + 1], a[4 * t + 2], a[4 * t + 3]};
  const uint32_t fb[2] = {b[2 * t], b[2 * t + 1]};
  if (kind == MmaKind::kU8S8) {
    int32_t fd[4];
    for (int i = 0; i < 4; ++i) fd[i] = static_cast<int32_t>(c[4 * t + i]);
    MmaU8S8(fd, fa, fb);
    for (int i = 0; i < 4; ++i) d[4 * t + i] = static_cast<uint32_t>(fd[i]);
    return;
  }
  float fd[4];
  for (int i = 0; i < 4; ++i) fd[i] = __uint_as_float(c[4 * t + i]);
  if (kind == MmaKind::kF16) {
    MmaF16(fd, fa, fb);
  } else {
    MmaBf16(fd, fa, fb);
  }
  for (int i = 0; i < 4; ++i) d[4 * t + i] = __float_as_uint(fd[i]);
}

__global__ void Matrices(uint32_t* out, const uint4* rows) {
  SHARED_ARRAY(uint4, tile, [32]);
  const int t = threadIdx.x;
  tile[t] = LoadStreaming(&rows[t]);
  __syncwarp();
  uint32_t r[4];
  LdMatrixX4(r, &tile[t]);
  for (int i = 0; i < 4; ++i) out[32 * i + t] = r[i];
  LdMatrixX4Trans(r, &tile[t]);
  for (int i = 0; i < 4; ++i) out[32 * (4 + i) + t] = r[i];
}

__global__ void Copies(uint4* out, const uint4* in) {
  DYNAMIC_SHARED(uint4, tile);
  const int t = threadIdx.x;
  CpAsync16(&tile[t], &in[t], t % 17);
  CpAsyncCommit();
  CpAsyncWait<0>();
  out[t] = tile[t];
}

__global__ void Halves(uint32_t* out, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                       int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  out[i] = HSub2(a[i], b[i]);
  out[n + i] = HMul2(a[i], b[i]);
  out[2 * n + i] = HFma2(a[i], b[i], c[i]);
}

__global__ void Stores(uint16_t* half, uint16_t* bf16, const float* v, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  StoreHalf(&half[i], v[i]);
  StoreBf16(&bf16[i], v[i]);
}

__global__ void E4m3(uint32_t* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = CvtE4m3x2ToHalf2(static_cast<uint16_t>(i));
}

__global__ void Bits(uint32_t* out, const uint32_t* a, const uint32_t* b, const uint32_t* c) {
  const int t = threadIdx.x;
  const uint32_t x = a[t], y = b[t], z = c[t];
  const int sx = static_cast<int>(x), sy = static_cast<int>(y);
  const uint32_t results[kBitResults] = {
      __byte_perm(x, y, z),
      static_cast<uint32_t>(__dp4a(sx, sy, 7)),
      __dp4a(x, y, 7u),
      static_cast<uint32_t>(__popc(x)),
      static_cast<uint32_t>(__clz(sx)),
      static_cast<uint32_t>(__ffs(sx)),
      __brev(x),
      __funnelshift_l(x, y, z & 31),
      __funnelshift_r(x, y, z & 31),
      __umulhi(x, y),
      static_cast<uint32_t>(__mulhi(sx, sy)),
      static_cast<uint32_t>(__float2int_rn(__uint_as_float(x))),
      static_cast<uint32_t>(__float2int_rz(__uint_as_float(x))),
  };
  for (int i = 0; i < kBitResults; ++i) out[64 * i + t] = results[i];
}

__global__ void Atomics(uint32_t* counts, uint32_t* out) {
  const unsigned t = threadIdx.x, all = blockIdx.x * blockDim.x + t;
  atomicAdd(&counts[0], 1u);
  atomicMax(&counts[1], all);
  atomicMin(&counts[2], all);
  atomicInc(&counts[3], 100u);
  atomicOr(&counts[4], 1u << all % 32);
  const int count = __syncthreads_count(t % 3 == 0);
  if (t == 0) out[blockIdx.x] = static_cast<uint32_t>(count);
}

__global__ void Strides(uint32_t* out, const uint32_t* in, int stride, int pitch) {
  DYNAMIC_SHARED(uint32_t, tile);
  const int t = threadIdx.x;
  tile[t * pitch] = in[t * stride];
  __syncwarp();
  out[t] = tile[t * pitch];
}

__global__ void Add(uint32_t* data, uint32_t value) { data[threadIdx.x] += value; }

__global__ void Nothing(int) {}

constexpr int kThreads = 128;
unsigned Blocks(int n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t LaunchIds(uint32_t* out, dim3 grid, dim3 block, cudaStream_t stream) {
  return LAUNCH_KERNEL(Ids, grid, block, 0, stream, out);
}
cudaError_t LaunchWarp(uint32_t* out, const uint32_t* v, cudaStream_t stream) {
  return LAUNCH_KERNEL(WarpWords, 1, 32, 0, stream, out, v);
}
cudaError_t LaunchReductions(float* out, const float* v, cudaStream_t stream) {
  return LAUNCH_KERNEL(Reductions, 1, 32, 0, stream, out, v);
}
cudaError_t LaunchMma(MmaKind kind, uint32_t* d, const uint32_t* a, const uint32_t* b,
                      const uint32_t* c, cudaStream_t stream) {
  return LAUNCH_KERNEL(Multiply, 1, 32, 0, stream, kind, d, a, b, c);
}
cudaError_t LaunchLdMatrix(uint32_t* out, const uint4* rows, cudaStream_t stream) {
  return LAUNCH_KERNEL(Matrices, 1, 32, 0, stream, out, rows);
}
cudaError_t LaunchCopy(uint4* out, const uint4* in, cudaStream_t stream) {
  return LAUNCH_KERNEL(Copies, 1, 32, 32 * sizeof(uint4), stream, out, in);
}
cudaError_t LaunchHalves(uint32_t* out, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                         int n, cudaStream_t stream) {
  return LAUNCH_KERNEL(Halves, Blocks(n), kThreads, 0, stream, out, a, b, c, n);
}
cudaError_t LaunchStores(uint16_t* half, uint16_t* bf16, const float* v, int n,
                         cudaStream_t stream) {
  return LAUNCH_KERNEL(Stores, Blocks(n), kThreads, 0, stream, half, bf16, v, n);
}
cudaError_t LaunchE4m3(uint32_t* out, int n, cudaStream_t stream) {
  return LAUNCH_KERNEL(E4m3, Blocks(n), kThreads, 0, stream, out, n);
}
cudaError_t LaunchBits(uint32_t* out, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                       cudaStream_t stream) {
  return LAUNCH_KERNEL(Bits, 1, 64, 0, stream, out, a, b, c);
}
cudaError_t LaunchAtomics(uint32_t* counts, uint32_t* out, cudaStream_t stream) {
  return LAUNCH_KERNEL(Atomics, 3, 256, 0, stream, counts, out);
}
cudaError_t LaunchStrides(uint32_t* out, const uint32_t* in, int stride, int pitch,
                          cudaStream_t stream) {
  return LAUNCH_KERNEL(Strides, 1, 32, 32 * sizeof(uint32_t) * static_cast<size_t>(pitch), stream,
                       out, in, stride, pitch);
}
cudaError_t LaunchAdd(uint32_t* data, uint32_t value, cudaStream_t stream) {
  return LAUNCH_KERNEL(Add, 1, 32, 0, stream, data, value);
}
cudaError_t LaunchNothing(dim3 grid, dim3 block, size_t dynamic_shared_bytes, cudaStream_t stream) {
  return LAUNCH_KERNEL(Nothing, grid, block, dynamic_shared_bytes, stream, 0);
}

}  // namespace bitshard::cuda
