// What bounds a kernel, measured once in this run, and how near a benchmark came.
#pragma once

#include <cstdint>

#include <benchmark/benchmark.h>

#include "kernels/base/cpu_features.h"

namespace bitshard {

// What one iteration needs at least.
struct Need {
  double memory_bytes = 0;  // not in the caches
  double int_macs = 0;      // multiply-adds of the width of PeakProbe::multiply_add
  double fmas = 0;          // f32
};

// Between its making and Report: the loop of the benchmark. Threads are those that work in it.
class ShareOfBound {
 public:
  explicit ShareOfBound(int threads);
  // Counter "share_of_bound": the least time for this need (memory and arithmetic overlap, so the
  // longer of the two) / the time that it took. CPU time with one thread, else by the clock. The
  // peaks are those of the machine's widest instruction set, whatever the kernel uses.
  void Report(benchmark::State& state, const Need& need) const;

 private:
  double Now() const;

  const int threads_;
  double start_s_ = 0;
};

// f32 multiply-adds in registers, `times` x FmasATime(isa). REQUIRES: acc of 256 floats.
void RunFmas(Isa isa, float* acc, int times);
int FmasATime(Isa isa);

}  // namespace bitshard
