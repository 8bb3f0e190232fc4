// Append and Attend on CUDA give the bits of the CPU's reference, for every type of cache, however
// tokens are put together in a step, on memory whose other bytes were never written.
#include "kernels/registry/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "kernels/cuda/emu/options.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/buffer.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

struct Shape {
  std::string name;
  int kv_heads;
  std::vector<int32_t> kv_head_of_q;
  int head_dim;
  int window = 0;

  int q_heads() const { return static_cast<int>(kv_head_of_q.size()); }
  int64_t q_width() const { return int64_t{q_heads()} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
};

struct Token {
  int sequence;  // -1: padding
  int position;
};

// Sequences with all their keys and values, on the host and on the device. Blocks are scattered
// over a cache of which much stays unused.
class Model {
 public:
  Model(KvType type, const Shape& shape, const std::vector<int>& lengths, uint32_t seed)
      : shape_(shape), lengths_(lengths) {
    config_.layout = {.type = type, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
    config_.q_heads = shape.q_heads();
    config_.kv_head_of_q.assign(shape.kv_head_of_q.begin(), shape.kv_head_of_q.end());
    config_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    config_.window = shape.window;
    int32_t blocks = 0;
    for (const int length : lengths) {
      begin_.push_back(blocks);
      blocks += (length + kKvBlockTokens - 1) / kKvBlockTokens;
      k_.push_back(RandomFloats(length * shape.kv_width(), ++seed, 2.0f));
      v_.push_back(RandomFloats(length * shape.kv_width(), ++seed));
      q_.push_back(RandomFloats(length * shape.q_width(), ++seed, 2.0f));
    }
    for (int32_t i = 0; i < blocks; ++i)
      table_.push_back(static_cast<uint32_t>((blocks - 1 - i) * 2 + 1));
    cache_bytes_ = static_cast<size_t>((2 * blocks + 1) * config_.layout.block_bytes());

    TestGpu& gpu = TestGpu::Get();
    block_begin_ = gpu.Upload(begin_);
    blocks_ = gpu.Upload(table_);
    heads_ = gpu.Upload(shape.kv_head_of_q);
    cache_ = gpu.Empty(cache_bytes_);
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const uint64_t scratch_bytes = gpu.kernels().AttentionScratchBytes(
        config_.layout, config_.q_heads, kMaxTokens, longest + 700);
    scratch_ = gpu.Upload(std::vector<uint8_t>(scratch_bytes, 0));
    attention_.layout = config_.layout;
    attention_.q_heads = config_.q_heads;
    attention_.kv_head_of_q = heads_.as<int32_t>();
    attention_.scale = config_.scale;
    attention_.window = config_.window;
    attention_.cache = cache_.data();
    attention_.scratch = scratch_bytes == 0 ? nullptr : scratch_.data();
    attention_.max_context = longest + 700;  // more than there is: parts without work
  }

  std::vector<float>& k(int sequence) { return k_[sequence]; }
  std::vector<float>& v(int sequence) { return v_[sequence]; }
  DeviceAttention& attention() { return attention_; }
  const Shape& shape() const { return shape_; }

  std::vector<Token> AllTokens() const {
    std::vector<Token> all;
    for (int s = 0; s < static_cast<int>(lengths_.size()); ++s) {
      for (int p = 0; p < lengths_[s]; ++p) all.push_back({s, p});
    }
    return all;
  }

  void FillDeviceCache() {
    cache_ = TestGpu::Get().Upload(std::vector<uint8_t>(cache_bytes_, 0xff));
    attention_.cache = cache_.data();
  }
  std::vector<uint8_t> DeviceCache() {
    return TestGpu::Get().Download<uint8_t>(cache_, cache_bytes_);
  }

  void Append(const std::vector<Token>& tokens) {
    TestGpu& gpu = TestGpu::Get();
    const Arrays arrays(*this, tokens);
    const DeviceBuffer k = gpu.Upload(Gather(k_, shape_.kv_width(), tokens));
    const DeviceBuffer v = gpu.Upload(Gather(v_, shape_.kv_width(), tokens));
    CHECK_OK(gpu.kernels().Append(attention_, k.as<float>(), v.as<float>(),
                                  shape_.kv_width() + kGap, arrays.view,
                                  static_cast<int64_t>(tokens.size()), gpu.stream()));
    gpu.Sync();
  }

  // [tokens][q_width]
  std::vector<float> Attend(const std::vector<Token>& tokens) {
    TestGpu& gpu = TestGpu::Get();
    const Arrays arrays(*this, tokens);
    const DeviceBuffer q = gpu.Upload(Gather(q_, shape_.q_width(), tokens));
    const size_t count = tokens.size() * shape_.q_width();
    const DeviceBuffer out = gpu.Empty(count * sizeof(float));
    CHECK_OK(gpu.kernels().Attend(attention_, q.as<float>(), shape_.q_width() + kGap,
                                  out.as<float>(), shape_.q_width(), arrays.view,
                                  static_cast<int64_t>(tokens.size()), gpu.stream()));
    return gpu.Download<float>(out, count);
  }

  // The CPU's reference over a cache of its own.
  void AppendOnCpu() {
    host_cache_ = Buffer(cache_bytes_);
    std::fill_n(host_cache_.data(), cache_bytes_, uint8_t{0xff});
    BoundAttention bound = Bind();
    for (size_t s = 0; s < lengths_.size(); ++s) {
      const AttentionRow row{
          .blocks = table_.data() + begin_[s], .start = 0, .tokens = lengths_[s], .first_row = 0};
      bound.Append({&row, 1}, k_[s].data(), v_[s].data(), shape_.kv_width(), host_cache_.data(),
                   pool_);
    }
  }
  std::vector<uint8_t> HostCache() const {
    return {host_cache_.data(), host_cache_.data() + cache_bytes_};
  }
  std::vector<float> AttendOnCpu(const std::vector<Token>& tokens) {
    BoundAttention bound = Bind();
    std::vector<float> out(tokens.size() * shape_.q_width(), 0.0f);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const Token token = tokens[i];
      if (token.sequence < 0) continue;
      const AttentionRow row{.blocks = table_.data() + begin_[token.sequence],
                             .start = token.position,
                             .tokens = 1,
                             .first_row = 0};
      bound.Run({&row, 1}, q_[token.sequence].data() + token.position * shape_.q_width(),
                shape_.q_width(), host_cache_.data(), out.data() + i * shape_.q_width(),
                shape_.q_width(), pool_);
    }
    return out;
  }

  static constexpr int64_t kMaxTokens = 128;

 private:
  static constexpr int64_t kGap = 3;  // between rows

  // DeviceTokens with their memory.
  struct Arrays {
    Arrays(const Model& model, const std::vector<Token>& tokens) {
      std::vector<int32_t> position, row;
      for (const Token& token : tokens) {
        position.push_back(token.sequence < 0 ? -1 : token.position);
        row.push_back(std::max(token.sequence, 0));
      }
      positions = TestGpu::Get().Upload(position);
      rows = TestGpu::Get().Upload(row);
      view.position = positions.as<int32_t>();
      view.row = rows.as<int32_t>();
      view.block_begin = model.block_begin_.as<int32_t>();
      view.blocks = model.blocks_.as<uint32_t>();
    }
    DeviceBuffer positions, rows;
    DeviceTokens view;
  };

  std::vector<float> Gather(const std::vector<std::vector<float>>& from, int64_t width,
                            const std::vector<Token>& tokens) const {
    std::vector<float> rows(tokens.size() * (width + kGap), -9.0f);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].sequence < 0) continue;
      std::copy_n(from[tokens[i].sequence].begin() + tokens[i].position * width, width,
                  rows.begin() + i * (width + kGap));
    }
    return rows;
  }

  BoundAttention Bind() {
    auto bound = BoundAttention::Bind(config_, 1, Isa::kScalar);
    CHECK_OK(bound.status());
    return *std::move(bound);
  }

  const Shape shape_;
  const std::vector<int> lengths_;
  AttentionConfig config_;
  std::vector<std::vector<float>> k_, v_, q_;
  std::vector<int32_t> begin_;  // of each sequence in table_
  std::vector<uint32_t> table_;
  size_t cache_bytes_ = 0;
  DeviceBuffer block_begin_, blocks_, heads_, cache_, scratch_;
  DeviceAttention attention_;
  Buffer host_cache_;
  ThreadPool pool_{1};
};

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

std::vector<Token> Positions(int sequence, int begin, int end) {
  std::vector<Token> tokens;
  for (int p = begin; p < end; ++p) tokens.push_back({sequence, p});
  return tokens;
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
    model.attention().scratch = nullptr;
    EXPECT_TRUE(Same(model.Attend(tokens), want, model, tokens)) << "without scratch";
  }
}

// Parts end in any order; each call leaves the scratch ready for the next.
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
    EXPECT_EQ(gpu.kernels().Append(attention, nullptr, nullptr, 0, {}, 1, gpu.stream()).code(),
              absl::StatusCode::kUnimplemented);
  }
  const KvLayout layout = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = 64};
  EXPECT_EQ(gpu.kernels().ChooseAttention(layout, 300).status().code(),
            absl::StatusCode::kUnimplemented);
  const auto choice = gpu.kernels().ChooseAttention(layout, 8);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->kernel, "cuda/attention");
}

// Memory for partial results is bounded, whatever the context and the rows.
TEST(CudaAttentionScratch, IsBoundedAndNothingForShortContexts) {
  const DeviceKernels& kernels = TestGpu::Get().kernels();
  const KvLayout layout = {.type = KvType::kBf16, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(kernels.AttentionScratchBytes(layout, 32, 512, 256), 0u);
  const uint64_t one = kernels.AttentionScratchBytes(layout, 32, 1, 4096);
  EXPECT_GE(one, uint64_t{32} * 16 * 130 * sizeof(float));
  EXPECT_LE(one, uint64_t{32} * 16 * 130 * sizeof(float) + 65536);
  EXPECT_LE(kernels.AttentionScratchBytes(layout, 64, 8192, 1 << 20), uint64_t{65} << 20);
}

}  // namespace
}  // namespace bitshard
