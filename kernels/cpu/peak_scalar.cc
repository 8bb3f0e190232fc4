// Peaks of a machine without vectors that we know: 8-byte loads, one multiplication at a time.
#include "kernels/registry/kernel_registry.h"
#include "kernels/registry/machine_peak.h"

namespace bitshard {
namespace {

uint64_t Read(const void* memory, size_t bytes) {
  const uint64_t* p = static_cast<const uint64_t*>(memory);
  uint64_t sums[8] = {};
  for (const uint64_t* end = p + bytes / sizeof(uint64_t); p != end; p += 8) {
    for (int j = 0; j < 8; ++j) sums[j] ^= p[j];
  }
  uint64_t all = 0;
  for (uint64_t sum : sums) all ^= sum;
  return all;
}

uint64_t MultiplyAdd(uint64_t rounds) {
  uint64_t a = 0, b = 0, c = 0, d = 0;
  uint32_t one = 1;
  for (uint64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+r"(one));
    a += one * one;
    asm volatile("" : "+r"(one));
    b += one * one;
    asm volatile("" : "+r"(one));
    c += one * one;
    asm volatile("" : "+r"(one));
    d += one * one;
  }
  return a + b + c + d;
}

const RegisterKernel<PeakProbe> kRegistered({.name = "cpu/peak_scalar",
                                             .isa = Isa::kScalar,
                                             .cost = 3,
                                             .read = &Read,
                                             .instruction = "imul, 32 bits",
                                             .multiply_adds_a_round = 4,
                                             .multiply_add = &MultiplyAdd});

}  // namespace
}  // namespace bitshard
