// Append and Attend on CUDA give the bits of the CPU's reference, for every type of cache, however
// tokens are put together in a step, on memory whose other bytes were never written.
#include "kernels/registry/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/emu/counters.h"
#include "kernels/cuda/emu/options.h"
#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/attention_on_device.h"

namespace bitshard {
namespace {

using Shape = AttentionShape;
using Token = TokenAt;
using Model = AttentionModel;

::testing::AssertionResult Same(const std::vector<float>& got, const std::vector<float>& want,
                                const Model& model, const std::vector<Token>& tokens) {
  if (got.size() != want.size()) return testing::AssertionFailure() << "sizes differ";
  const int64_t width = model.shape().q_width();
  for (size_t i = 0; i < got.size(); ++i) {
    if (SameBits(got[i], want[i])) continue;
    const Token& token = tokens[i / width];
    return testing::AssertionFailure()
           << model.shape().name << ": sequence " << token.sequence << " position "
           << token.position << " value " << i % width << ": " << got[i] << " for " << want[i];
  }
  return testing::AssertionSuccess();
}

const std::vector<int> kContexts = {1, 15, 16, 17, 255, 256, 257, 600};

// The newest token of each sequence, as in decoding.
std::vector<Token> NewestTokens(const std::vector<int>& lengths) {
  std::vector<Token> tokens;
  for (int s = 0; s < static_cast<int>(lengths.size()); ++s) tokens.push_back({s, lengths[s] - 1});
  return tokens;
}

// Of each of `count` q heads: their kv heads take turns.
std::vector<int32_t> TakingTurns(int count, int kv_heads) {
  std::vector<int32_t> kv_head_of_q;
  for (int head = 0; head < count; ++head) kv_head_of_q.push_back(head % kv_heads);
  return kv_head_of_q;
}

std::vector<Shape> Shapes() {
  return {
      {"one head each", 2, {0, 1}, 64},
      {"groups of 3", 1, {0, 0, 0}, 64},
      {"groups of 4", 2, {0, 0, 0, 0, 1, 1, 1, 1}, 32},
      {"uneven groups, one kv head without queries", 3, {2, 0, 2}, 48},
      {"more heads than a turn takes", 1, std::vector<int32_t>(11, 0), 16},
      {"a head of no multiple of 4", 1, {0, 0}, 22},
      {"wide heads", 1, {0}, 256},
      {"a window in a chunk", 1, {0, 0}, 16, 20},
      {"a window over chunks", 1, {0, 0, 0}, 32, 260},
      {"more heads than a warp has lanes", 2, TakingTurns(40, 2), 16},
  };
}

class CudaAttention : public testing::TestWithParam<KvType> {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

TEST_P(CudaAttention, AppendStoresTheBytesOfTheCpu) {
  uint32_t seed = 10;
  for (const Shape& shape : Shapes()) {
    Model model(GetParam(), shape, {100, 37, 1}, seed += 100);
    const float special[] = {std::numeric_limits<float>::quiet_NaN(),
                             -std::numeric_limits<float>::infinity(), 1e30f, 1e-42f};
    for (int i = 0; i < 4; ++i) {
      model.k(0)[(20 + 3 * i) * shape.kv_width() + i] = special[i];
      model.v(1)[(2 + 5 * i) * shape.kv_width() + i] = special[i];
    }
    std::fill_n(model.k(1).begin(), shape.kv_width(), 0.0f);
    model.AppendOnCpu();
    model.FillDeviceCache();
    // Pieces that begin and end inside blocks, several sequences in a step, padding.
    std::vector<Token> step = Positions(0, 0, 5);
    step.push_back({2, 0});
    step.push_back({-1, 0});
    model.Append(step);
    step = Positions(0, 5, 40);
    const std::vector<Token> other = Positions(1, 0, 37);
    step.insert(step.end(), other.begin(), other.end());
    model.Append(step);
    for (int p = 40; p < 50; ++p) model.Append({{0, p}});
    model.Append(Positions(0, 50, 100));
    // Again, where the next position is another sequence's.
    model.Append({{0, 32}, {1, 33}, {0, 34}, {0, 35}, {1, 36}});
    EXPECT_EQ(model.DeviceCache(), model.HostCache()) << shape.name;
  }
}

// What was never written is never read: the check build says so.
TEST_P(CudaAttention, DecodeGivesTheBitsOfTheReference) {
  uint32_t seed = 1000;
  const std::vector<Shape> shapes = Shapes();
  for (size_t i = 0; i < shapes.size(); ++i) {
    // Every context for three groupings; the other shapes are dear where heads are wide.
    std::vector<int> contexts = kContexts;
    if (i >= 3) contexts = {16, 33, shapes[i].window > 0 ? 600 : 300};
    Model model(GetParam(), shapes[i], contexts, seed += 100);
    model.AppendOnCpu();
    model.Append(model.AllTokens());
    const std::vector<Token> tokens = NewestTokens(contexts);
    EXPECT_TRUE(Same(model.Attend(tokens), model.AttendOnCpu(tokens), model, tokens));
  }
}

TEST_P(CudaAttention, StepsOfAnyMakeGiveTheSameBits) {
  uint32_t seed = 3000;
  for (const Shape& shape : {Shapes()[1], Shapes()[2], Shapes()[8]}) {
    Model model(GetParam(), shape, {290, 33, 7}, seed += 100);
    model.AppendOnCpu();
    model.Append(model.AllTokens());
    // Rows of several sequences and padding, in tiles of several tokens.
    std::vector<Token> tokens = Positions(0, 250, 262);
    tokens.push_back({-1, 0});
    tokens.push_back({1, 32});
    for (const Token& token : Positions(2, 0, 7)) tokens.push_back(token);
    for (const Token& token : Positions(0, 280, 290)) tokens.push_back(token);
    tokens.push_back({-1, 0});
    const std::vector<float> want = model.AttendOnCpu(tokens);
    EXPECT_TRUE(Same(model.Attend(tokens), want, model, tokens)) << "together";
    const std::vector<Token> some(tokens.begin() + 3, tokens.begin() + 16);
    const std::vector<float> want_some(want.begin() + 3 * shape.q_width(),
                                       want.begin() + 16 * shape.q_width());
    EXPECT_TRUE(Same(model.Attend(some), want_some, model, some)) << "a part of them";
    model.attention().scratch_bytes = 0;
    EXPECT_TRUE(Same(model.Attend(tokens), want, model, tokens)) << "without scratch";
  }
}

// Parts end in any order; each call needs nothing of the one before it.
TEST_P(CudaAttention, SplitContextsFoldInOrder) {
  const Shape shape = {"five chunks", 2, {0, 0, 0, 1}, 32};
  Model model(GetParam(), shape, {1100, 500}, 5000);
  model.AppendOnCpu();
  model.Append(model.AllTokens());
  const std::vector<Token> tokens = {{0, 1099}, {1, 499}, {0, 700}, {1, 3}};
  const std::vector<float> want = model.AttendOnCpu(tokens);
  for (const emu::Order order :
       {emu::Order::kForward, emu::Order::kBackward, emu::Order::kShuffled}) {
    emu::SetOptions({.order = order});
    EXPECT_TRUE(Same(model.Attend(tokens), want, model, tokens)) << static_cast<int>(order);
    EXPECT_TRUE(Same(model.Attend({tokens[1]}),
                     {want.begin() + shape.q_width(), want.begin() + 2 * shape.q_width()}, model,
                     {tokens[1]}));
  }
  emu::SetOptions({});
}

// The fold takes 32 chunks at once: as many as that behind the first, fewer, more, and half as many
// again.
TEST(CudaAttentionFold, OfManyChunksIsTheReferences) {
  for (const int window : {0, 33 * kKvChunkTokens}) {
    const Shape shape = {"a head", 1, {0}, 34, window};  // two warps' worth, with lanes over
    Model model(KvType::kBf16, shape, {51 * kKvChunkTokens}, 5500);
    // Chunk 32 has the largest score, on one side of 0 or the other.
    for (int d = 0; d < shape.head_dim; ++d) {
      float* const k = model.k(0).data() + (32 * kKvChunkTokens + 7) * shape.head_dim + d;
      *k *= 8;
      k[shape.head_dim] = -*k;
    }
    model.AppendOnCpu();
    model.Append(model.AllTokens());
    std::vector<Token> tokens;
    for (const int chunks : {1, 2, 32, 33, 34, 51})
      tokens.push_back({0, chunks * kKvChunkTokens - 1});
    EXPECT_TRUE(Same(model.Attend(tokens), model.AttendOnCpu(tokens), model, tokens)) << window;
  }
  ExpectNoFindings();
}

TEST_P(CudaAttention, WhoeverSeesANonFiniteTokenGetsNanAndNobodyElse) {
  const Shape shape = {"groups of 2", 1, {0, 0}, 32};
  Model model(GetParam(), shape, {60}, 6000);
  // Tiles of four tokens begin anywhere: neighbours of a turn must not see them.
  for (int i = 0; i < 4; ++i)
    model.v(0)[(28 + i) * 32 + 6 + i] = std::numeric_limits<float>::quiet_NaN();
  model.k(0)[45 * 32 + 5] = std::numeric_limits<float>::infinity();
  model.AppendOnCpu();
  model.Append(model.AllTokens());
  for (const int begin : {20, 23}) {
    const std::vector<Token> tokens = Positions(0, begin, 60);
    const std::vector<float> got = model.Attend(tokens);
    EXPECT_TRUE(Same(got, model.AttendOnCpu(tokens), model, tokens));
    for (size_t i = 0; i < got.size(); ++i) {
      const int position = tokens[i / 64].position, d = static_cast<int>(i % 32);
      const bool of_v =
          position >= 28 && (KvHasScales(GetParam()) || (d >= 6 && d < 10 && position >= 22 + d));
      if (of_v) {
        EXPECT_TRUE(std::isnan(got[i])) << position << " " << d;
      } else if (position < 45) {
        EXPECT_TRUE(std::isfinite(got[i])) << position << " " << d;
      }
    }
  }
}

std::string TypeName(const testing::TestParamInfo<KvType>& info) { return KvTypeName(info.param); }

INSTANTIATE_TEST_SUITE_P(Types, CudaAttention, testing::ValuesIn(kAllKvTypes), &TypeName);

TEST(CudaAttentionRefuses, HeadsThatNoKernelServes) {
  TestGpu& gpu = TestGpu::Get();
  for (const int head_dim : {63, 258, 512}) {
    const KvLayout layout = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = head_dim};
    const auto choice = gpu.kernels().ChooseAttention(layout, 1);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented) << head_dim;
    DeviceAttention attention;
    attention.layout = layout;
    attention.q_heads = 1;
    EXPECT_EQ(gpu.kernels().Attend(attention, nullptr, 0, nullptr, 0, {}, 1, gpu.stream()).code(),
              absl::StatusCode::kUnimplemented);
    EXPECT_EQ(gpu.kernels().Append(attention, {}, {}, 1, gpu.stream()).code(),
              absl::StatusCode::kUnimplemented);
  }
  const KvLayout layout = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = 64};
  EXPECT_EQ(gpu.kernels().ChooseAttention(layout, 300).status().code(),
            absl::StatusCode::kUnimplemented);
  const auto choice = gpu.kernels().ChooseAttention(layout, 8);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->kernel, "cuda/attention");
}

// Contexts are split for 2048 blocks, and queries put together where that loads K and V less often.
TEST(CudaAttentionPlan, FillsALargeGpuAndNoMore) {
  const KvLayout layout = {.type = KvType::kBf16, .kv_heads = 8, .head_dim = 128};
  constexpr uint64_t kPlenty = uint64_t{1} << 30;
  cuda::AttendPlan plan = cuda::PlanAttend(layout, 32, 1, 1 << 19, 0, kPlenty);
  EXPECT_EQ(plan.tile_tokens, 1);
  EXPECT_EQ(plan.queries, 4);
  EXPECT_EQ(plan.chunks, 2048);
  EXPECT_EQ(plan.parts * 8, 2048);
  EXPECT_EQ(cuda::PlanAttend(layout, 32, 1, 1 << 19, 0, 0).parts, 1);
  // A window of two chunks touches three.
  plan = cuda::PlanAttend(layout, 32, 1, 1 << 19, 512, kPlenty);
  EXPECT_EQ(plan.chunks, 3);
  EXPECT_EQ(plan.parts, 3);
  // Two tokens of a group of 4 at once; 1024 blocks a part.
  plan = cuda::PlanAttend(layout, 32, 256, 2048, 0, kPlenty);
  EXPECT_EQ(plan.tile_tokens, 2);
  EXPECT_EQ(plan.queries, 8);
  EXPECT_EQ(plan.parts, 2);
  // Blocks enough for a large GPU, if not for an even end, and more than 64 MiB of partial results.
  EXPECT_EQ(cuda::PlanAttend(layout, 32, 128, 1 << 15, 0, kPlenty).parts, 1);
}

// As many tokens as leave SMs without work are split for any context that there is memory for.
TEST(CudaAttentionPlan, SplitsFewTokensOfLongContexts) {
  const KvLayout whole = {.type = KvType::kBf16, .kv_heads = 8, .head_dim = 128};
  const KvLayout eighth = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = 128};
  const int64_t context = 1 << 17;
  for (const auto& [layout, q_heads, m] : {std::tuple(whole, 32, 8), std::tuple(eighth, 8, 32)}) {
    const uint64_t bytes = cuda::AttendScratchBytes(layout, q_heads, m, context, uint64_t{1} << 30);
    EXPECT_GT(bytes, uint64_t{64} << 20);
    EXPECT_LT(bytes, uint64_t{80} << 20);
    const cuda::AttendPlan plan = cuda::PlanAttend(layout, q_heads, m, context, 0, bytes);
    EXPECT_EQ(plan.parts * m * layout.kv_heads, 2048);
    EXPECT_EQ(cuda::PlanAttend(layout, q_heads, m, context, 0, bytes - 1).parts, 1);
  }
}

TEST(CudaAttentionPlan, ATileOfTokensIsABlock) {
  Model model(KvType::kBf16, {"one head", 1, {0}, 16}, {64}, 7000);
  model.Append(model.AllTokens());
  model.attention().scratch_bytes = 0;  // one part
  emu::ResetCounters();
  model.Attend(Positions(0, 0, 64));
  const emu::Counters counters = emu::GetCounters();
  if (counters.launches > 0) {
    EXPECT_EQ(counters.blocks, 64u / 8);
  }
  ExpectNoFindings();
}

// Memory for partial results is bounded, whatever the context and the rows.
TEST(CudaAttentionScratch, IsBoundedAndNothingForShortContexts) {
  const DeviceKernels& kernels = TestGpu::Get().kernels();
  const KvLayout layout = {.type = KvType::kBf16, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(kernels.AttentionScratchBytes(layout, 32, 512, 256), 0u);
  const uint64_t one = kernels.AttentionScratchBytes(layout, 32, 1, 4096);
  EXPECT_GE(one, uint64_t{32} * 16 * 130 * sizeof(float));
  EXPECT_LE(one, uint64_t{32} * 16 * 130 * sizeof(float) + 65536);
  EXPECT_LE(kernels.AttentionScratchBytes(layout, 64, 8192, 1 << 20), uint64_t{64} << 20);
  const uint64_t most = uint64_t{1} << 30;
  EXPECT_EQ(cuda::AttendScratchBytes(layout, 64, 8192, 1 << 20, most), most);
  // Of shorter contexts only few rows are worth more than 64 MiB.
  EXPECT_LT(cuda::AttendScratchBytes(layout, 32, 8192, 1 << 13, most), uint64_t{70} << 20);
}

}  // namespace
}  // namespace bitshard
