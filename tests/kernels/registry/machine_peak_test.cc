// The probes of the machine's peaks do the work that their figures count.

#include "kernels/registry/machine_peak.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

#include "kernels/registry/kernel_registry.h"

namespace bitshard {
namespace {

TEST(MachinePeak, EveryInstructionSetHasAProbe) {
  for (Isa isa : kAllIsas) {
    int probes = 0;
    for (const PeakProbe* probe : KernelRegistry<PeakProbe>::Get().all())
      probes += probe->isa == isa;
    EXPECT_EQ(probes, 1) << IsaName(isa);
  }
}

TEST(MachinePeak, ProbesReadEveryWord) {
  constexpr size_t kWords = 1024 / sizeof(uint64_t);
  for (const PeakProbe* probe : KernelRegistry<PeakProbe>::Get().all()) {
    if (!HasIsa(probe->isa)) continue;
    Buffer memory(kWords * sizeof(uint64_t));
    EXPECT_EQ(probe->read(memory.data(), memory.bytes()), 0u) << probe->name;
    for (size_t i = 0; i < kWords; ++i) {
      memory.as<uint64_t>()[i] = 0x0123456789abcdefu + i;
      EXPECT_EQ(probe->read(memory.data(), memory.bytes()), 0x0123456789abcdefu + i)
          << probe->name << ", word " << i;
      memory.as<uint64_t>()[i] = 0;
    }
  }
}

TEST(MachinePeak, ProbesMultiplyAsOftenAsTheySay) {
  for (const PeakProbe* probe : KernelRegistry<PeakProbe>::Get().all()) {
    if (!HasIsa(probe->isa)) continue;
    for (uint64_t rounds : {0, 1, 1000}) {
      EXPECT_EQ(probe->multiply_add(rounds), rounds * probe->multiply_adds_a_round) << probe->name;
    }
  }
}

TEST(MachinePeak, MeasuresWithAnyNumberOfThreads) {
  for (int threads : {1, 3}) {
    const MachinePeaks peaks = PeakMeter(threads).Measure();
    EXPECT_GT(peaks.read_bytes_per_s, 0);
    EXPECT_GT(peaks.read_bytes_per_cpu_s, 0);
    EXPECT_GT(peaks.int_ops_per_s, 0);
    EXPECT_GT(peaks.int_ops_per_cpu_s, 0);
  }
}

TEST(MachinePeak, TheBestOfEachIsKept) {
  MachinePeaks best{.read_bytes_per_s = 5, .int_ops_per_s = 1};
  best.TakeBest({.read_bytes_per_s = 4, .read_bytes_per_cpu_s = 2, .int_ops_per_s = 3});
  EXPECT_EQ(best.read_bytes_per_s, 5);
  EXPECT_EQ(best.read_bytes_per_cpu_s, 2);
  EXPECT_EQ(best.int_ops_per_s, 3);
}

}  // namespace
}  // namespace bitshard
