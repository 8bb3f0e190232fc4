// What the emulator counts in the launches whose counters ncu's are laid beside, held to what they
// must move at the least: a double read, rows that several blocks fetch, half-used sectors and
// conflicts between banks show here and in no result.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "kernels/tensor/device_matrix.h"
#include "tests/gpu/kernel_cases.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

struct Launch {
  std::string name;
  emu::Counters counters;
};

// With the choice of kernels that a GPU makes.
std::vector<Launch> CalibrationLaunches() {
  setenv("BITSHARD_FAKE_CUDA_MULTIPROCESSORS", "132", 1);
  std::vector<Launch> launches;
  CaseOptions options;
  options.hooks.before = [](const std::string&) { emu::ResetCounters(); };
  options.hooks.after = [&launches](const std::string& name) {
    launches.push_back({name, emu::GetCounters()});
  };
  (void)RunCases(CaseSet::kCalibration, options);
  return launches;
}

// All bytes once, and each block its own once.
struct Bytes {
  std::string name;
  int64_t unique = 0, by_blocks = 0;
  double sectors = 0.95;  // least share of the sectors touched that these bytes need
  // Most sectors asked for, by_blocks = 1; a second read of the weights is nearly 2.
  double requested = 1.15;
};

// `rows_a_unit`: of a block; `tokens_a_chunk` that it computes at once.
Bytes LinearBytes(const PackedSpec& spec, int64_t m, int64_t rows_a_unit, int64_t tokens_a_chunk) {
  const auto rows = static_cast<int64_t>(spec.rows), cols = static_cast<int64_t>(spec.cols);
  const auto weights = static_cast<int64_t>(LayoutOnDevice(spec)->bytes);
  const int64_t x = m * (2 * cols + 4), y = 4 * m * rows;
  return {std::to_string(rows) + "x" + std::to_string(cols) + " m=" + std::to_string(m),
          weights + x + y,
          weights * ((m + tokens_a_chunk - 1) / tokens_a_chunk) +
              x * ((rows + rows_a_unit - 1) / rows_a_unit) + y};
}

TEST(CounterBars, EachByteIsMovedOnceAndWholeSectorsAndBanksAreUsed) {
  const int64_t tokens = 512 + 300, kv = tokens * 2 * 2 * 128, q = 2 * 8 * 128 * 4;
  // Append rotates queries in place, by angles that each of a token's four blocks reads.
  const int64_t queries = tokens * 8 * 128 * 4, angles = tokens * 64 * 8;
  // Of two chunks a context and head: written by one block, read by the one that folds them.
  const int64_t partial = 2 * 8 * 2 * (128 + 2) * 4;
  const int64_t norm = 16 * 4096 * 4;
  // Append reads V, and norm stores y, four bytes a lane at every other place; append reads and
  // stores queries, and norm reads x twice.
  const Bytes expected[] = {
      LinearBytes(IntSpec(1024, 2048, {4, 128}), 1, 16, 8),
      LinearBytes(IntSpec(12288, 512, {4, 128}), 1, 32, 8),
      LinearBytes(IntSpec(512, 2048, {4, 128}), 16, 16, 16),
      LinearBytes(IntSpec(512, 2048, {5, 128}), 4, 16, 8),
      LinearBytes({.rows = 512, .cols = 1024, .type = PackedSpec::Type::kBf16}, 1, 16, 8),
      LinearBytes(IntSpec(256, 1024, {4, 128}), 256, 128, 64),
      {"rotate and append bf16", kv * (4 + 2) + queries + angles + tokens * 8,
       kv * (4 + 2) + queries + 4 * angles + tokens * 6 * 32, 0.94, 2.1},
      {"attend bf16", kv * 2 + 2 * q + partial, kv * 2 + 3 * q + 2 * partial},
      {"norm 16x4096", 2 * norm + 4096 * 4, 2 * norm + 16 * 4096 * 4, 0.79, 1.7}};
  const std::vector<Launch> launches = CalibrationLaunches();
  ASSERT_EQ(launches.size(), std::size(expected));
  for (size_t i = 0; i < launches.size(); ++i) {
    const emu::Counters& counted = launches[i].counters;
    SCOPED_TRACE(launches[i].name);
    EXPECT_THAT(launches[i].name, HasSubstr(expected[i].name));
    const double unique = static_cast<double>(counted.unique_bytes) / expected[i].unique;
    const double requested = static_cast<double>(counted.requested_bytes) / expected[i].by_blocks;
    const double by_blocks =
        static_cast<double>(counted.block_unique_bytes) / expected[i].by_blocks;
    EXPECT_LE(unique, 1.02);
    EXPECT_GE(unique, 0.98);  // else the formula is another kernel's
    EXPECT_LE(by_blocks, 1.02);
    EXPECT_LE(requested, expected[i].requested);
    EXPECT_GE(counted.global.Efficiency(), expected[i].sectors);
    EXPECT_GE(counted.shared.Efficiency(), 0.95);
  }
}

}  // namespace
}  // namespace bitshard
