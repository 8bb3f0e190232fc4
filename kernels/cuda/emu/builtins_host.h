// CUDA's builtin functions as host code: included by language_host.h alone. A builtin that is
// missing here does not compile in emulation; add it with the CUDA manual's meaning.
//
// Approximate functions of the device (__expf, rsqrtf, __fdividef) are the exact ones here: results
// differ from a GPU's in the last bits.
#pragma once

#include <atomic>
#include <cstdlib>

// Barriers and warp collectives.
__forceinline__ void __syncthreads(EMU_WHERE) { bitshard::emu::SyncBlock(where); }
__forceinline__ int __syncthreads_count(int predicate, EMU_WHERE) {
  return bitshard::emu::SyncBlockCount(predicate != 0, where);
}
__forceinline__ int __syncthreads_or(int predicate, EMU_WHERE) {
  return bitshard::emu::SyncBlockCount(predicate != 0, where) != 0;
}
__forceinline__ int __syncthreads_and(int predicate, EMU_WHERE) {
  return bitshard::emu::SyncBlockCount(predicate == 0, where) == 0;
}
__forceinline__ void __syncwarp(unsigned mask = ~0u, EMU_WHERE) {
  bitshard::emu::Meet(bitshard::emu::Collective::kSyncWarp, mask, 0, 0, 32, where);
}

template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMU_WHERE) {
  return bitshard::emu::FromBits<T>(bitshard::emu::Meet(
      bitshard::emu::Collective::kShuffle, mask, bitshard::emu::ToBits(value), lane, width, where));
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, EMU_WHERE) {
  return bitshard::emu::FromBits<T>(bitshard::emu::Meet(bitshard::emu::Collective::kShuffleXor,
                                                        mask, bitshard::emu::ToBits(value), lanes,
                                                        width, where));
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                                 EMU_WHERE) {
  return bitshard::emu::FromBits<T>(bitshard::emu::Meet(bitshard::emu::Collective::kShuffleUp, mask,
                                                        bitshard::emu::ToBits(value),
                                                        static_cast<int>(lanes), width, where));
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32,
                                   EMU_WHERE) {
  return bitshard::emu::FromBits<T>(bitshard::emu::Meet(bitshard::emu::Collective::kShuffleDown,
                                                        mask, bitshard::emu::ToBits(value),
                                                        static_cast<int>(lanes), width, where));
}

__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, EMU_WHERE) {
  return static_cast<unsigned>(
      bitshard::emu::Meet(bitshard::emu::Collective::kBallot, mask, predicate != 0, 0, 32, where));
}
__forceinline__ int __any_sync(unsigned mask, int predicate, EMU_WHERE) {
  return __ballot_sync(mask, predicate, where) != 0;
}
__forceinline__ int __all_sync(unsigned mask, int predicate, EMU_WHERE) {
  return __ballot_sync(mask, predicate == 0, where) == 0;
}
__forceinline__ unsigned __reduce_add_sync(unsigned mask, unsigned value, EMU_WHERE) {
  return static_cast<unsigned>(
      bitshard::emu::Meet(bitshard::emu::Collective::kReduceAdd, mask, value, 0, 32, where));
}
__forceinline__ int __reduce_add_sync(unsigned mask, int value, EMU_WHERE) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), where));
}
__forceinline__ unsigned __reduce_min_sync(unsigned mask, unsigned value, EMU_WHERE) {
  return static_cast<unsigned>(
      bitshard::emu::Meet(bitshard::emu::Collective::kReduceMin, mask, value, 0, 32, where));
}
__forceinline__ unsigned __reduce_max_sync(unsigned mask, unsigned value, EMU_WHERE) {
  return static_cast<unsigned>(
      bitshard::emu::Meet(bitshard::emu::Collective::kReduceMax, mask, value, 0, 32, where));
}
__forceinline__ int __reduce_min_sync(unsigned mask, int value, EMU_WHERE) {
  return static_cast<int>(bitshard::emu::Meet(bitshard::emu::Collective::kReduceMinSigned, mask,
                                              static_cast<unsigned>(value), 0, 32, where));
}
__forceinline__ int __reduce_max_sync(unsigned mask, int value, EMU_WHERE) {
  return static_cast<int>(bitshard::emu::Meet(bitshard::emu::Collective::kReduceMaxSigned, mask,
                                              static_cast<unsigned>(value), 0, 32, where));
}

// Atomics and fences. The core checks the access; the read and the write here are not instrumented.
#define EMU_UNCHECKED __attribute__((no_sanitize("thread"), noinline))

namespace bitshard::emu {
template <class T>
EMU_UNCHECKED T Exchange(T* p, T value) {
  const T old = *p;
  *p = value;
  return old;
}
template <class T>
EMU_UNCHECKED T Read(const T* p) {
  return *p;
}
template <class T, class Change>
__forceinline__ T Atomically(T* p, const Change& change) {
  BeforeAtomic(p, sizeof(T));
  return Exchange(p, static_cast<T>(change(Read(p))));
}
}  // namespace bitshard::emu

template <class T>
__forceinline__ T atomicAdd(T* p, T value) {
  return bitshard::emu::Atomically(p, [value](T old) { return old + value; });
}
template <class T>
__forceinline__ T atomicSub(T* p, T value) {
  return bitshard::emu::Atomically(p, [value](T old) { return old - value; });
}
template <class T>
__forceinline__ T atomicMax(T* p, T value) {
  return bitshard::emu::Atomically(p, [value](T old) { return old > value ? old : value; });
}
template <class T>
__forceinline__ T atomicMin(T* p, T value) {
  return bitshard::emu::Atomically(p, [value](T old) { return old < value ? old : value; });
}
template <class T>
__forceinline__ T atomicOr(T* p, T value) {
  return bitshard::emu::Atomically(p, [value](T old) { return old | value; });
}
template <class T>
__forceinline__ T atomicAnd(T* p, T value) {
  return bitshard::emu::Atomically(p, [value](T old) { return old & value; });
}
template <class T>
__forceinline__ T atomicExch(T* p, T value) {
  return bitshard::emu::Atomically(p, [value](T) { return value; });
}
template <class T>
__forceinline__ T atomicCAS(T* p, T expected, T value) {
  return bitshard::emu::Atomically(
      p, [expected, value](T old) { return old == expected ? value : old; });
}
// Wraps to 0 after `limit`: a ticket that resets itself.
__forceinline__ unsigned atomicInc(unsigned* p, unsigned limit) {
  return bitshard::emu::Atomically(p, [limit](unsigned old) { return old >= limit ? 0 : old + 1; });
}
__forceinline__ void __threadfence() { bitshard::emu::FenceGrid(); }
__forceinline__ void __threadfence_system() { bitshard::emu::FenceGrid(); }
// Orders a thread's accesses within its block: no barrier, so the checks gain nothing from it.
__forceinline__ void __threadfence_block() { std::atomic_signal_fence(std::memory_order_seq_cst); }
__forceinline__ void __trap(EMU_WHERE) { bitshard::emu::Trap(where); }

// Cached loads and stores.
template <class T>
__forceinline__ T __ldg(const T* p) {
  return *p;
}
template <class T>
__forceinline__ T __ldcg(const T* p) {
  return *p;
}
template <class T>
__forceinline__ T __ldcs(const T* p) {
  return *p;
}
template <class T>
__forceinline__ void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
__forceinline__ void __stcg(T* p, T value) {
  *p = value;
}

// Bits.
__forceinline__ float __int_as_float(int x) { return bitshard::emu::FromBits<float>(unsigned(x)); }
__forceinline__ float __uint_as_float(unsigned x) { return bitshard::emu::FromBits<float>(x); }
__forceinline__ int __float_as_int(float x) { return static_cast<int>(bitshard::emu::ToBits(x)); }
__forceinline__ unsigned __float_as_uint(float x) {
  return static_cast<unsigned>(bitshard::emu::ToBits(x));
}
__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__forceinline__ int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
__forceinline__ int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__forceinline__ unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
__forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(both >> (8 * (choice & 7))) & 255u;
    if (choice & 8) byte = byte & 128u ? 255u : 0u;  // replicate the sign
    result |= byte << (8 * i);
  }
  return result;
}
__forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
}
__forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}

// Integers.
__forceinline__ int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i)
    c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
__forceinline__ unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 255u) * (b >> (8 * i) & 255u);
  return c;
}
__forceinline__ unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
__forceinline__ int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
template <class T>
__forceinline__ T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
__forceinline__ T max(T a, T b) {
  return a < b ? b : a;
}
__forceinline__ float min(float a, float b) { return fminf(a, b); }
__forceinline__ float max(float a, float b) { return fmaxf(a, b); }

// Floats.
__forceinline__ float rsqrtf(float x) { return 1.0f / sqrtf(x); }
__forceinline__ float __expf(float x) { return expf(x); }
__forceinline__ float __logf(float x) { return logf(x); }
__forceinline__ float __fdividef(float a, float b) { return a / b; }
__forceinline__ float __frcp_rn(float x) { return 1.0f / x; }
__forceinline__ float __fsqrt_rn(float x) { return sqrtf(x); }
__forceinline__ float __fadd_rn(float a, float b) { return a + b; }
__forceinline__ float __fsub_rn(float a, float b) { return a - b; }
__forceinline__ float __fmul_rn(float a, float b) { return a * b; }
__forceinline__ float __fdiv_rn(float a, float b) { return a / b; }
__forceinline__ float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
__forceinline__ double __dadd_rn(double a, double b) { return a + b; }
__forceinline__ double __dmul_rn(double a, double b) { return a * b; }
__forceinline__ float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

// Conversions: the device saturates and turns NaN into 0, which C++ leaves undefined.
namespace bitshard::emu {
template <class Integer, class Float>
Integer SaturatingCast(Float rounded) {
  constexpr Integer kMin = Integer(Integer(1) << (8 * sizeof(Integer) - 1));
  constexpr Float kLimit = Float(uint64_t{1} << (8 * sizeof(Integer) - 1));
  if (rounded != rounded) return 0;
  if (rounded >= kLimit) return Integer(~kMin);
  return rounded < -kLimit ? kMin : static_cast<Integer>(rounded);
}
}  // namespace bitshard::emu

__forceinline__ int __float2int_rn(float x) {
  return bitshard::emu::SaturatingCast<int32_t>(rintf(x));
}
__forceinline__ int __float2int_rz(float x) {
  return bitshard::emu::SaturatingCast<int32_t>(truncf(x));
}
__forceinline__ int __float2int_rd(float x) {
  return bitshard::emu::SaturatingCast<int32_t>(floorf(x));
}
__forceinline__ long long __float2ll_rn(float x) {
  const double rounded = rint(static_cast<double>(x));
  // PTX gives NaN the smallest 64-bit integer.
  return rounded != rounded ? INT64_MIN : bitshard::emu::SaturatingCast<int64_t>(rounded);
}
__forceinline__ long long __double2ll_rn(double x) {
  const double rounded = rint(x);
  return rounded != rounded ? INT64_MIN : bitshard::emu::SaturatingCast<int64_t>(rounded);
}
__forceinline__ float __int2float_rn(int x) { return static_cast<float>(x); }
__forceinline__ float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
__forceinline__ float __ll2float_rn(long long x) { return static_cast<float>(x); }
__forceinline__ double __ll2double_rn(long long x) { return static_cast<double>(x); }
__forceinline__ float __double2float_rn(double x) { return static_cast<float>(x); }
