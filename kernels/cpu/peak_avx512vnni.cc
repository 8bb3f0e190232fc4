// Peaks of a machine with AVX-512 VNNI: 64-byte loads, vpdpbusd.
#include "kernels/cpu/isa_region.h"
#include "kernels/registry/kernel_registry.h"
#include "kernels/registry/machine_peak.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

uint64_t Read(const void* memory, size_t bytes) {
  const char* p = static_cast<const char*>(memory);
  __m512i sums[8];
  ISA_UNROLL
  for (int j = 0; j < 8; ++j) sums[j] = _mm512_setzero_si512();
  for (const char* end = p + bytes; p != end; p += 512) {
    ISA_UNROLL
    for (int j = 0; j < 8; ++j) {
      _mm_prefetch(p + 4096 + 64 * j, _MM_HINT_T0);
      sums[j] = _mm512_xor_si512(sums[j], _mm512_load_si512(p + 64 * j));
    }
  }
  alignas(64) uint64_t words[8];
  ISA_UNROLL
  for (int j = 1; j < 8; ++j) sums[0] = _mm512_xor_si512(sums[0], sums[j]);
  _mm512_store_si512(words, sums[0]);
  uint64_t all = 0;
  for (int j = 0; j < 8; ++j) all ^= words[j];
  return all;
}

// 12 chains hide the latency of the instruction.
uint64_t MultiplyAdd(uint64_t rounds) {
  __m512i sums[12];
  ISA_UNROLL
  for (int j = 0; j < 12; ++j) {
    sums[j] = _mm512_setzero_si512();
    asm volatile("" : "+v"(sums[j]));  // or the compiler sees that all chains are one
  }
  __m512i ones = _mm512_set1_epi8(1);
  for (uint64_t i = 0; i < rounds; ++i) {
    ISA_UNROLL
    for (int j = 0; j < 12; ++j) sums[j] = _mm512_dpbusd_epi32(sums[j], ones, ones);
    asm volatile("" : "+v"(ones));
  }
  uint64_t all = 0;
  for (int j = 0; j < 12; ++j) {
    alignas(64) uint32_t lanes[16];
    _mm512_store_si512(lanes, sums[j]);
    for (int lane = 0; lane < 16; ++lane) all += lanes[lane];
  }
  return all;
}

ISA_END

const RegisterKernel<PeakProbe> kRegistered({.name = "cpu/peak_avx512vnni",
                                             .isa = Isa::kAvx512Vnni,
                                             .cost = 1,
                                             .read = &Read,
                                             .instruction = "vpdpbusd, 512 bits",
                                             .multiply_adds_a_round = 12 * 64,
                                             .multiply_add = &MultiplyAdd});

}  // namespace
}  // namespace bitshard
