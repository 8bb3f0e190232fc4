// Rotation and append in one launch give the bits of the CPU, which rotates first: in the cache,
// whose every byte is looked at, and in the queries with what lies between them.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "kernels/cuda/emu/options.h"
#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/attention_on_device.h"
#include "tests/kernels/cuda/rows_on_device.h"

namespace bitshard {
namespace {

using Pairing = RopeConfig::Pairing;

struct RotatedShape {
  AttentionShape shape;
  int rotary_dim;
  Pairing pairing;
};

// q heads of `kv_heads` groups.
AttentionShape Grouped(const char* name, int kv_heads, int group, int head_dim) {
  AttentionShape shape = {name, kv_heads, {}, head_dim};
  for (int head = 0; head < kv_heads * group; ++head) shape.kv_head_of_q.push_back(head / group);
  return shape;
}

std::vector<RotatedShape> RotatedShapes() {
  return {
      {Grouped("whole heads", 2, 2, 64), 64, Pairing::kHalves},
      {Grouped("whole heads, interleaved", 2, 1, 64), 64, Pairing::kInterleaved},
      {Grouped("a part of the head, groups of 3", 1, 3, 80), 32, Pairing::kHalves},
      {Grouped("an odd number of pairs, interleaved", 1, 5, 22), 6, Pairing::kInterleaved},
      {Grouped("an odd number of pairs", 3, 3, 22), 22, Pairing::kHalves},
      {Grouped("one pair", 1, 1, 2), 2, Pairing::kHalves},
      {Grouped("one pair of many", 1, 2, 48), 2, Pairing::kInterleaved},
      {Grouped("as many pairs as a block has threads", 1, 1, 256), 256, Pairing::kHalves},
  };
}

UploadedRope RopeOf(const RotatedShape& rotated) {
  RopeConfig config;
  config.head_dim = rotated.shape.head_dim;
  config.rotary_dim = rotated.rotary_dim;
  config.pairing = rotated.pairing;
  config.max_positions = 1000;
  return UploadedRope(config);
}

class CudaAppend : public testing::TestWithParam<KvType> {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

// Pieces that begin and end inside blocks, several sequences in a step, single tokens, padding.
std::vector<std::vector<TokenAt>> Steps() {
  std::vector<std::vector<TokenAt>> steps = {Positions(0, 0, 5)};
  steps[0].push_back({2, 0});
  steps[0].push_back({-1, 0});
  steps.push_back(Positions(0, 5, 40));
  const std::vector<TokenAt> other = Positions(1, 0, 37);
  steps[1].insert(steps[1].end(), other.begin(), other.end());
  for (int p = 40; p < 44; ++p) steps.push_back({{-1, 0}, {0, p}, {-1, 0}});
  steps.push_back(Positions(0, 44, 70));
  // Again, where the next position is another sequence's.
  steps.push_back({{0, 32}, {1, 33}, {0, 34}, {0, 35}, {1, 36}});
  return steps;
}

TEST_P(CudaAppend, RotatesAndStoresWithTheBitsOfTheCpu) {
  uint32_t seed = 40;
  for (const RotatedShape& rotated : RotatedShapes()) {
    const AttentionShape& shape = rotated.shape;
    UploadedRope rope = RopeOf(rotated);
    AttentionModel model(GetParam(), shape, {70, 37, 1}, seed += 100);
    model.k(0)[20 * shape.kv_width()] = 1e30f;
    model.k(0)[21 * shape.kv_width() + 1] = 1e-42f;
    std::fill_n(model.k(1).begin(), shape.kv_width(), 0.0f);
    if (KvHasScales(GetParam())) {  // else the payload of a NaN would be compared
      model.k(0)[23 * shape.kv_width()] = std::numeric_limits<float>::infinity();
      model.k(1)[6 * shape.kv_width() + 1] = std::numeric_limits<float>::quiet_NaN();
    }
    model.AppendOnCpu(&rope);
    model.FillDeviceCache();
    for (const std::vector<TokenAt>& step : Steps()) {
      EXPECT_TRUE(SameFloats(model.Append(step, &rope), model.Queries(step, rope))) << shape.name;
    }
    EXPECT_EQ(model.DeviceCache(), model.HostCache()) << shape.name;
  }
}

TEST_P(CudaAppend, TheOrderOfThreadsMakesNoDifference) {
  const RotatedShape rotated = RotatedShapes()[2];
  UploadedRope rope = RopeOf(rotated);
  AttentionModel model(GetParam(), rotated.shape, {35, 20}, 900);
  model.AppendOnCpu(&rope);
  const std::vector<TokenAt> tokens = model.AllTokens();
  for (const emu::Order order :
       {emu::Order::kForward, emu::Order::kBackward, emu::Order::kShuffled}) {
    emu::SetOptions({.order = order});
    model.FillDeviceCache();
    EXPECT_TRUE(SameFloats(model.Append(tokens, &rope), model.Queries(tokens, rope)));
    EXPECT_EQ(model.DeviceCache(), model.HostCache()) << static_cast<int>(order);
  }
  emu::SetOptions({});
}

std::string TypeName(const testing::TestParamInfo<KvType>& info) { return KvTypeName(info.param); }

INSTANTIATE_TEST_SUITE_P(Types, CudaAppend, testing::ValuesIn(kAllKvTypes), &TypeName);

// Of each token: one for each kv head, one for each 4 query heads that are rotated.
TEST(CudaAppendBlocks, AreThoseThatHaveWork) {
  const RotatedShape rotated = {Grouped("GQA", 2, 3, 32), 32, Pairing::kHalves};
  UploadedRope rope = RopeOf(rotated);
  AttentionModel model(KvType::kBf16, rotated.shape, {18}, 1000);
  const std::vector<TokenAt> tokens = model.AllTokens();
  emu::ResetCounters();
  model.Append(tokens);
  const uint64_t stored = emu::GetCounters().blocks;
  emu::ResetCounters();
  model.Append(tokens, &rope);
  const emu::Counters counters = emu::GetCounters();
  if (counters.launches > 0) {
    EXPECT_EQ(stored, 18u * 2);
    EXPECT_EQ(counters.launches, 2u) << "the angles and the rest";
    EXPECT_EQ(counters.blocks, 18u + 18 * (2 + 2));
  }
  ExpectNoFindings();
}

}  // namespace
}  // namespace bitshard
