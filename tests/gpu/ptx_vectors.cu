// The kernel behind ptx_vectors.h: one warp a block, each lane writes its output words in order.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/load.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "tests/gpu/ptx_vectors.h"

namespace bitshard::cuda {
namespace {

// Two halves in +-[1, 2).
__device__ uint32_t UnitHalves(uint32_t x) { return (x & 0x83ff83ffu) | 0x3c003c00u; }
__device__ uint32_t UnitBf16s(uint32_t x) { return (x & 0x807f807fu) | 0x3f803f80u; }
// Two e4m3 codes of numbers.
__device__ uint16_t E4m3Numbers(uint32_t x) {
  uint32_t codes = x & 0xffffu;
  if ((codes & 0x7fu) == 0x7fu) codes ^= 1u;
  if ((codes & 0x7f00u) == 0x7f00u) codes ^= 0x100u;
  return static_cast<uint16_t>(codes);
}
// Two finite halves below 2 with subnormals among them.
__device__ uint32_t SmallHalves(uint32_t x) { return x & 0xbbffbbffu; }
__device__ float UnitFloat(uint32_t x) { return __uint_as_float((x & 0x007fffffu) | 0x3f800000u); }

class Out {
 public:
  __device__ explicit Out(uint32_t* words) : next_(words) {}
  __device__ void Add(uint32_t word) { *next_++ = word; }
  __device__ void Add(float value) { Add(__float_as_uint(value)); }
  __device__ void Add(int value) { Add(static_cast<uint32_t>(value)); }
  __device__ void Add(long long value) {
    Add(static_cast<uint32_t>(value));
    Add(static_cast<uint32_t>(static_cast<unsigned long long>(value) >> 32));
  }
  template <class T>
  __device__ void AddAll(const T (&values)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) Add(values[i]);
  }

 private:
  uint32_t* next_;
};

__device__ void Add4(const uint4& v, Out* out) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  out->AddAll(words);
}

__device__ void Products(const uint32_t* r, Out* out) {
  uint32_t a[4], b[2];
  float d[4];
  for (int i = 0; i < 4; ++i) a[i] = UnitHalves(r[i]);
  for (int i = 0; i < 2; ++i) b[i] = UnitHalves(r[4 + i]);
  for (int i = 0; i < 4; ++i) d[i] = UnitFloat(r[6 + i]);
  MmaF16(d, a, b);
  out->AddAll(d);
  for (int i = 0; i < 4; ++i) a[i] = UnitBf16s(r[i]);
  for (int i = 0; i < 2; ++i) b[i] = UnitBf16s(r[4 + i]);
  for (int i = 0; i < 4; ++i) d[i] = UnitFloat(r[6 + i]);
  MmaBf16(d, a, b);
  out->AddAll(d);
  for (int i = 0; i < 4; ++i) a[i] = r[i];
  for (int i = 0; i < 2; ++i) b[i] = r[4 + i];
  int32_t sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = static_cast<int32_t>(r[6 + i]) >> 8;
  MmaU8S8(sums, a, b);
  out->AddAll(sums);
}

__device__ void SharedMemory(const uint32_t* r, int lane, Out* out) {
  SHARED_ARRAY(uint4, rows, [32]);
  rows[lane] = make_uint4(r[0], r[1], r[2], r[3]);
  __syncwarp();
  uint32_t registers[4];
  LdMatrixX4(registers, &rows[lane * 5 & 31]);
  out->AddAll(registers);
  LdMatrixX4Trans(registers, &rows[lane * 5 & 31]);
  out->AddAll(registers);
  __syncwarp();
  // Lanes copy 0 to 16 bytes; the rest is zeros.
  CpAsync16(&rows[lane], r, lane % 17);
  CpAsyncCommit();
  CpAsyncWait<0>();
  __syncwarp();
  Add4(rows[31 - lane], out);
  // Two copies in flight, of which the older one is waited for first.
  SHARED_ARRAY(uint4, newer, [32]);
  __syncwarp();
  CpAsync16(&rows[lane], r + 4);
  CpAsyncCommit();
  CpAsync16(&newer[lane], r + 8);
  CpAsyncCommit();
  CpAsyncWait<1>();
  __syncwarp();
  Add4(rows[lane ^ 7], out);
  CpAsyncWait<0>();
  __syncwarp();
  Add4(newer[lane ^ 9], out);

  Add4(LoadStreaming(reinterpret_cast<const uint4*>(r)), out);
  const uint2 two = LoadStreaming(reinterpret_cast<const uint2*>(r + 6));
  out->Add(two.x);
  out->Add(two.y);
  out->Add(LoadStreaming(r + 11));
}

__device__ void Lanes(const uint32_t* r, Out* out) {
  constexpr unsigned kAll = 0xffffffffu;
  out->Add(__shfl_sync(kAll, r[0], 5, 8));
  out->Add(__shfl_xor_sync(kAll, r[0], 9, 16));
  out->Add(__shfl_up_sync(kAll, r[0], 3, 16));
  out->Add(__shfl_down_sync(kAll, r[0], 3, 8));
  out->Add(__ballot_sync(kAll, static_cast<int>(r[1] & 1)));
  out->Add(WarpSum(UnitFloat(r[2])));
  out->Add(WarpMax(UnitFloat(r[3])));
}

__device__ void Numbers(const uint32_t* r, Out* out) {
  out->Add(__byte_perm(r[0], r[1], r[2] & 0xffffu));
  out->Add(__popc(r[1]));
  out->Add(__dp4a(static_cast<int>(r[0]), static_cast<int>(r[1]), 7));
  out->Add(__funnelshift_r(r[0], r[1], r[2]));
  out->Add(HSub2(SmallHalves(r[3]), SmallHalves(r[4])));
  out->Add(HMul2(SmallHalves(r[3]), SmallHalves(r[4])));
  out->Add(HFma2(SmallHalves(r[3]), SmallHalves(r[4]), SmallHalves(r[5])));
  out->Add(CvtE4m3x2ToHalf2(E4m3Numbers(r[6])));
  out->Add(HalfToFloat(static_cast<uint16_t>(SmallHalves(r[10]))));
  const float any = __uint_as_float(r[7]);  // NaN, infinities and subnormals too
  out->Add(static_cast<uint32_t>(HalfBits(any)) << 16 | Bf16Bits(any));
  out->Add(__float2int_rn(any));
  out->Add(__float2int_rz(any));
  out->Add(__float2ll_rn(any));
  out->Add(__double2ll_rn(static_cast<double>(UnitFloat(r[8])) * 4294967296.0));
  const float x = UnitFloat(r[8]), y = UnitFloat(r[9]);
  out->Add(fmaf(x, y, UnitFloat(r[10]) - 3.0f));
  out->Add(__double2ll_rn(fma(static_cast<double>(x), 1.0 / 3.0, -0.5) * 0x1p60));
  out->Add(rintf(1000.0f * x));
  out->Add(__fdiv_rn(x, y));
  out->Add(__fsqrt_rn(x));
  out->Add(__frcp_rn(y));
  out->Add(rsqrtf(x));
  out->Add(__expf(8.0f * x - 12.0f));
}

__global__ void PtxVectors(const uint32_t* in, uint32_t* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t index = int64_t{32} * blockIdx.x + lane;
  const uint32_t* r = in + index * kPtxInputWords;
  Out words(out + index * PtxOutputWords());
  Products(r, &words);
  SharedMemory(r, lane, &words);
  Lanes(r, &words);
  Numbers(r, &words);
}

}  // namespace
}  // namespace bitshard::cuda

namespace bitshard {

int LaunchPtxVectors(const uint32_t* in, uint32_t* out, int warps, void* stream) {
  return static_cast<int>(LAUNCH_KERNEL(cuda::PtxVectors, dim3(static_cast<unsigned>(warps)),
                                        dim3(32), 0, static_cast<cudaStream_t>(stream), in, out));
}

}  // namespace bitshard
