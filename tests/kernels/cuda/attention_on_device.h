// A model's attention on the device and on the CPU, for the tests of kernels/cuda/attention*.cu.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "kernels/registry/attention.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/buffer.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/cuda/rope_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {

struct AttentionShape {
  std::string name;
  int kv_heads;
  std::vector<int32_t> kv_head_of_q;
  int head_dim;
  int window = 0;

  int q_heads() const { return static_cast<int>(kv_head_of_q.size()); }
  int64_t q_width() const { return int64_t{q_heads()} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
};

struct TokenAt {
  int sequence;  // -1: padding
  int position;
};

// Sequences with all their keys and values, on the host and on the device. Blocks are scattered
// over a cache of which much stays unused.
class AttentionModel {
 public:
  AttentionModel(KvType type, const AttentionShape& shape, const std::vector<int>& lengths,
                 uint32_t seed)
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
    scratch_ = gpu.Empty(scratch_bytes);
    attention_.layout = config_.layout;
    attention_.q_heads = config_.q_heads;
    attention_.kv_head_of_q = heads_.as<int32_t>();
    attention_.scale = config_.scale;
    attention_.window = config_.window;
    attention_.cache = cache_.data();
    attention_.scratch = scratch_.data();
    attention_.scratch_bytes = scratch_bytes;
    attention_.max_context = longest + 700;  // more than there is: parts without work
  }

  std::vector<float>& k(int sequence) { return k_[sequence]; }
  std::vector<float>& v(int sequence) { return v_[sequence]; }
  DeviceAttention& attention() { return attention_; }
  const AttentionShape& shape() const { return shape_; }

  std::vector<TokenAt> AllTokens() const {
    std::vector<TokenAt> all;
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

  // With a rope rotated: the queries too, which it returns, each row with what is behind it.
  std::vector<float> Append(const std::vector<TokenAt>& tokens, UploadedRope* rope = nullptr) {
    TestGpu& gpu = TestGpu::Get();
    const Arrays arrays(*this, tokens);
    const auto m = static_cast<int64_t>(tokens.size());
    const DeviceBuffer k = gpu.Upload(Gather(k_, shape_.kv_width(), tokens));
    const DeviceBuffer v = gpu.Upload(Gather(v_, shape_.kv_width(), tokens));
    std::vector<float> queries;
    if (rope != nullptr) queries = Gather(q_, shape_.q_width(), tokens);
    const DeviceBuffer q = gpu.Upload(queries);
    DeviceAppend append;
    append.k = k.as<float>();
    append.v = v.as<float>();
    append.stride = shape_.kv_width() + kGap;
    if (rope != nullptr) {
      append.rope = &rope->Of(arrays.view, m);
      append.q = q.as<float>();
      append.q_stride = shape_.q_width() + kGap;
    }
    CHECK_OK(gpu.kernels().Append(attention_, append, arrays.view, m, gpu.stream()));
    return gpu.Download<float>(q, queries.size());
  }

  // What that returns, by the CPU.
  std::vector<float> Queries(const std::vector<TokenAt>& tokens, const UploadedRope& rope) const {
    std::vector<float> queries = Gather(q_, shape_.q_width(), tokens);
    std::vector<int32_t> positions;
    for (const TokenAt& token : tokens)
      positions.push_back(token.sequence < 0 ? -1 : token.position);
    rope.Apply(queries, shape_.q_heads(), shape_.q_width() + kGap, positions);
    return queries;
  }

  // [tokens][q_width]
  std::vector<float> Attend(const std::vector<TokenAt>& tokens) {
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

  // The CPU's reference over a cache of its own, with a rope of rotated keys.
  void AppendOnCpu(const UploadedRope* rope = nullptr) {
    host_cache_ = Buffer(cache_bytes_);
    std::fill_n(host_cache_.data(), cache_bytes_, uint8_t{0xff});
    BoundAttention bound = Bind();
    for (size_t s = 0; s < lengths_.size(); ++s) {
      const AttentionRow row{
          .blocks = table_.data() + begin_[s], .start = 0, .tokens = lengths_[s], .first_row = 0};
      std::vector<float> k = k_[s];
      if (rope != nullptr) {
        std::vector<int32_t> positions(static_cast<size_t>(lengths_[s]));
        std::iota(positions.begin(), positions.end(), 0);
        rope->Apply(k, shape_.kv_heads, shape_.kv_width(), positions);
      }
      bound.Append({&row, 1}, k.data(), v_[s].data(), shape_.kv_width(), host_cache_.data(), pool_);
    }
  }
  std::vector<uint8_t> HostCache() const {
    return {host_cache_.data(), host_cache_.data() + cache_bytes_};
  }
  std::vector<float> AttendOnCpu(const std::vector<TokenAt>& tokens) {
    BoundAttention bound = Bind();
    std::vector<float> out(tokens.size() * shape_.q_width(), 0.0f);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const TokenAt token = tokens[i];
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
    Arrays(const AttentionModel& model, const std::vector<TokenAt>& tokens) {
      std::vector<int32_t> position, row;
      for (const TokenAt& token : tokens) {
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
                            const std::vector<TokenAt>& tokens) const {
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

  const AttentionShape shape_;
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

inline std::vector<TokenAt> Positions(int sequence, int begin, int end) {
  std::vector<TokenAt> tokens;
  for (int p = begin; p < end; ++p) tokens.push_back({sequence, p});
  return tokens;
}

}  // namespace bitshard
