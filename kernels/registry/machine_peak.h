// What the machine can do at most, measured: reading from memory, and multiplying small integers.
// The bounds that `bitshard bench` compares with.
//
// A probe of an instruction set registers itself (kernels/cpu/peak_*.cc); the widest that the
// machine has is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/cpu_features.h"
#include "kernels/tensor/buffer.h"

namespace bitshard {

struct PeakProbe {
  const char* name;
  Isa isa;
  int cost;  // for KernelRegistry: lower is wider
  // The xor of all 64-bit words of [memory, memory + bytes). `bytes` is a multiple of 512, `memory`
  // is aligned to 64.
  uint64_t (*read)(const void* memory, size_t bytes);
  // The instruction of multiply_add, and how many multiply-adds of integers a round is. The product
  // is of the width that the matmul kernels of this instruction set use: 8 bits, or 16.
  const char* instruction;
  uint64_t multiply_adds_a_round;
  // Runs rounds of independent multiply-adds of ones; returns their sum, which is rounds *
  // multiply_adds_a_round. At most 2^28 rounds.
  uint64_t (*multiply_add)(uint64_t rounds);
};

struct MachinePeaks {
  // By the clock, and by the CPU time of the threads (which other processes on the machine do not
  // stretch). A multiply-add is two operations.
  double read_bytes_per_s = 0, read_bytes_per_cpu_s = 0;
  double int_ops_per_s = 0, int_ops_per_cpu_s = 0;
  // Keeps the better of each.
  void TakeBest(const MachinePeaks& other);
};

// Measures with some threads at once. The memory read is beyond what caches hold.
class PeakMeter {
 public:
  explicit PeakMeter(int threads);
  // Takes about a tenth of a second.
  MachinePeaks Measure() const;
  const PeakProbe& probe() const { return probe_; }
  int threads() const { return threads_; }

 private:
  const int threads_;
  const PeakProbe& probe_;
  Buffer memory_;
};

}  // namespace bitshard
