// One warp or block a launch that runs every word of the language layer and of kernels/cuda/ptx
// once, so that language_test.cc can compare with plain definitions. All pointers are to device
// memory.
#pragma once

#include <cstdint>
#include <driver_types.h>
#include <vector_types.h>

namespace bitshard::cuda {

// out[number of the thread in the grid] = its ids packed: x + 16 y + 256 z of the thread, and of
// the block shifted by 12 bits.
cudaError_t LaunchIds(uint32_t* out, dim3 grid, dim3 block, cudaStream_t stream);

// 32 lanes, value v[lane]. out[i][lane], i over
//   0 shfl(5, width 8), 1 xor(9, width 16), 2 up(3, width 16), 3 down(3, width 8), 4 ballot(v & 1),
//   5 reduce_add, 6 reduce_min unsigned, 7 reduce_max signed, 8 any(v == 7), 9 all(v != 7)
constexpr int kWarpResults = 10;
cudaError_t LaunchWarp(uint32_t* out, const uint32_t* v, cudaStream_t stream);

// out[0][lane] WarpSum, out[1][lane] five shuffles, out[2][lane] WarpMax.
cudaError_t LaunchReductions(float* out, const float* v, cudaStream_t stream);

// d = c + a * b, one warp. Fragments of lane l: a[4 l ..], b[2 l ..], c and d[4 l ..].
enum class MmaKind { kF16, kBf16, kU8S8 };
cudaError_t LaunchMma(MmaKind kind, uint32_t* d, const uint32_t* a, const uint32_t* b,
                      const uint32_t* c, cudaStream_t stream);

// Row l % 8 of matrix l / 8 is rows[l], 8 halves. out[0..3][lane] plain, out[4..7][lane]
// transposed.
cudaError_t LaunchLdMatrix(uint32_t* out, const uint4* rows, cudaStream_t stream);

// out[lane] = the first `lane % 17` bytes of in[lane], the rest zero, by cp.async.
cudaError_t LaunchCopy(uint4* out, const uint4* in, cudaStream_t stream);

// Of the two halves of a[i], b[i], c[i]: out[0] HSub2, out[1] HMul2, out[2] HFma2(a, b, c).
cudaError_t LaunchHalves(uint32_t* out, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                         int n, cudaStream_t stream);
// half[i], bf16[i] of v[i] by the Store functions.
cudaError_t LaunchStores(uint16_t* half, uint16_t* bf16, const float* v, int n,
                         cudaStream_t stream);
// out[i] = the two halves of e4m3 codes i % 256 and (i / 256).
cudaError_t LaunchE4m3(uint32_t* out, int n, cudaStream_t stream);

// out[i][thread] for 64 threads with words a, b:
//   0 byte_perm(a, b, c), 1 dp4a signed, 2 dp4a unsigned, 3 popc, 4 clz, 5 ffs, 6 brev,
//   7 funnelshift_l(a, b, c & 31), 8 funnelshift_r, 9 umulhi, 10 mulhi, 11 float2int_rn, 12
//   float2int_rz
constexpr int kBitResults = 13;
cudaError_t LaunchBits(uint32_t* out, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                       cudaStream_t stream);

// 256 threads in 3 blocks: counts[0] += 1 each, counts[1] = max, counts[2] = min, counts[3] wraps
// at 100, counts[4] = 1 | bits; out[block] = __syncthreads_count(thread % 3 == 0).
cudaError_t LaunchAtomics(uint32_t* counts, uint32_t* out, cudaStream_t stream);

// out[thread] = in[thread * stride], and through shared memory rows of `pitch` words.
cudaError_t LaunchStrides(uint32_t* out, const uint32_t* in, int stride, int pitch,
                          cudaStream_t stream);

// Adds value to every one of 32 words.
cudaError_t LaunchAdd(uint32_t* data, uint32_t value, cudaStream_t stream);

// Does nothing, with any shape.
cudaError_t LaunchNothing(dim3 grid, dim3 block, size_t dynamic_shared_bytes, cudaStream_t stream);

}  // namespace bitshard::cuda
