// A group of ranks that samples, and random rows for it: what the sampler's tests share.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/cpu_features.h"
#include "proto/token_mask.h"
#include "tests/support/reference_sampler.h"
#include "tests/support/thread_ranks.h"
#include "worker/sample/sampler.h"

namespace bitshard {

struct Shard {
  uint32_t begin, count;
};

using Rows = std::vector<std::vector<float>>;  // [outputs][vocab_size]

// The instruction sets of this machine; ranks take turns.
inline const std::vector<Isa> kIsas = [] {
  std::vector<Isa> isas;
  for (Isa isa : kAllIsas) {
    if (HasIsa(isa)) isas.insert(isas.begin(), isa);
  }
  return isas;
}();

// A group of ranks that samples; padding and stride are as a rank has them.
class Group {
 public:
  Group(uint32_t vocab_size, std::vector<Shard> shards, int max_outputs)
      : vocab_size_(vocab_size),
        shards_(std::move(shards)),
        ranks_(static_cast<int>(shards_.size())) {
    for (const Shard& shard : shards_) {
      auto sampler = Sampler::Bind({.vocab_size = vocab_size,
                                    .vocab_begin = shard.begin,
                                    .local_vocab = shard.count,
                                    .max_outputs = max_outputs,
                                    .world = static_cast<int>(shards_.size()),
                                    .isa = kIsas[samplers_.size() % kIsas.size()]});
      CHECK_OK(sampler.status());
      samplers_.push_back(*std::move(sampler));
    }
  }

  // The outputs of rank 0; all ranks must agree.
  std::vector<SampleOutput> Sample(const Rows& logits, const std::vector<SampleRow>& rows) {
    std::vector<std::vector<SampleOutput>> out(shards_.size(),
                                               std::vector<SampleOutput>(rows.size()));
    ranks_.Run([&](int rank, Collective& collective) {
      const Shard& shard = shards_[rank];
      std::vector<float> local;
      for (const std::vector<float>& row : logits) {
        for (uint32_t i = shard.begin; i < shard.begin + shard.count; ++i) {
          // Padding counts for nothing.
          local.push_back(i < vocab_size_ ? row[i] : std::numeric_limits<float>::infinity());
        }
      }
      CHECK_OK(samplers_[rank]->Sample(local, rows, collective, absl::MakeSpan(out[rank])));
    });
    for (size_t r = 1; r < out.size(); ++r) {
      for (size_t i = 0; i < rows.size(); ++i)
        CHECK(Same(out[0][i], out[r][i])) << "rank " << r << " row " << i;
    }
    return out[0];
  }

  static bool Same(const SampleOutput& a, const SampleOutput& b) {
    const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
    if (a.non_finite != b.non_finite || a.none_allowed != b.none_allowed || a.token != b.token ||
        bits(a.logprob) != bits(b.logprob) || a.n_top != b.n_top) {
      return false;
    }
    for (int i = 0; i < a.n_top; ++i) {
      if (a.top[i].token != b.top[i].token || bits(a.top[i].logprob) != bits(b.top[i].logprob))
        return false;
    }
    return true;
  }

 private:
  const uint32_t vocab_size_;
  const std::vector<Shard> shards_;
  ThreadRanks ranks_;
  std::vector<std::unique_ptr<Sampler>> samplers_;
};

// 1000 tokens: 15 whole units and one of 40; the last rank's rows are padded to 1024.
inline constexpr uint32_t kVocab = 1000;
inline std::vector<std::vector<Shard>> Cuts() {
  return {{{0, 1024}},
          {{0, 1000}},
          {{0, 640}, {640, 384}},
          {{0, 64}, {64, 960}},
          {{0, 320}, {320, 0}, {320, 704}},
          {{0, 256}, {256, 320}, {576, 448}},
          {{0, 192}, {192, 64}, {256, 704}, {960, 64}},
          {{0, 1024}, {1024, 0}, {1024, 0}, {1024, 0}}};
}

inline std::string Describe(const SampleRow& row) {
  const SampleParams& p = row.params;
  return absl::StrCat("temperature ", p.temperature, " top_k ", p.top_k, " top_p ", p.top_p,
                      " min_p ", p.min_p, " seed ", p.seed, " position ", row.position,
                      " top_logprobs ", p.top_logprobs);
}

template <typename T>
T Pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

inline std::vector<float> RandomLogits(std::mt19937_64& random, uint32_t vocab) {
  std::vector<float> x(vocab);
  std::normal_distribution<float> normal;
  const float spread = Pick(random, {0.0f, 0.01f, 1.0f, 3.0f, 12.0f, 1000.0f});
  const float shift = Pick(random, {0.0f, 0.0f, -40.0f, 1e6f});
  const int kind = random() % 6;
  for (float& v : x) {
    v = normal(random) * spread + shift;
    if (kind == 1) v = std::round(v);                   // many ties
    if (kind == 2) v = random() % 3 == 0 ? v : -3e38f;  // no probability, but finite
    if (kind == 3) v = random() % 2 == 0 ? 0.0f : -0.0f;
    if (kind == 4) v = static_cast<float>(random() % 4) * 0.25f;
  }
  if (kind == 5) x[random() % vocab] = shift + 50;  // one that dwarfs the rest
  return x;
}

inline SampleRow RandomRow(std::mt19937_64& random) {
  SampleRow row;
  SampleParams& p = row.params;
  p.temperature = Pick(random, {0.0f, 0.2f, 0.7f, 1.0f, 1.0f, 1.7f, 1e-30f, 100.0f});
  p.top_k = Pick(random, {0u, 0u, 0u, 1u, 2u, 40u, 128u, 129u, 200u, 500u, 999u, 1000u, 5000u});
  p.top_p = Pick(random, {1.0f, 1.0f, 0.0f, 1e-6f, 0.5f, 0.9f, 0.95f, 0.999f, 0.99999994f});
  p.min_p = Pick(random, {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-9f});
  p.seed = random();
  p.choice = random() % 4;
  p.top_logprobs = Pick(random, {0u, 0u, 1u, 5u, 20u});
  p.want_logprob = random() % 2 == 0;
  row.position = random() % 3 == 0 ? random() : random() % 10'000;
  return row;
}

// Edits of a row and what they view. Its address is kept.
struct EditedRow {
  std::vector<int32_t> prompt, output;
  std::vector<TokenBias> biases;
  std::string allowed, mask;
  std::vector<uint32_t> forbidden;
  LogitEdits edits;

  void View() {
    edits.prompt = prompt;
    edits.output = output;
    edits.biases = biases;
    edits.allowed = allowed;
    edits.mask = mask;
    edits.forbidden = forbidden;
  }
  std::string Describe() const {
    return absl::StrCat(" repetition ", edits.repetition, " frequency ", edits.frequency,
                        " presence ", edits.presence, " prompt ", prompt.size(), " output ",
                        output.size(), " biases ", biases.size(), allowed.empty() ? "" : " allowed",
                        mask.empty() ? "" : " mask", " forbidden ", forbidden.size());
  }
};

// Of every kind, from one that allows a single token (now and then none) to one that allows all.
inline std::string RandomMask(std::mt19937_64& random, uint32_t vocab) {
  std::string mask = MakeTokenMask(vocab, /*allowed=*/false);
  const auto any = [&] { return static_cast<uint32_t>(random() % vocab); };
  switch (random() % 6) {
    case 0:
      AllowToken(any(), &mask);
      break;
    case 1:
      for (int i = 0; i < 30; ++i) AllowToken(any(), &mask);
      break;
    case 2: {  // maybe all on one rank
      const uint32_t first = any(), last = std::min<uint32_t>(vocab, first + 100);
      for (uint32_t i = first; i < last; ++i) AllowToken(i, &mask);
      break;
    }
    case 3:
      for (uint32_t i = 0; i < vocab; ++i) {
        if (random() % 2 == 0) AllowToken(i, &mask);
      }
      break;
    case 4:
      mask = MakeTokenMask(vocab, /*allowed=*/true);
      for (int i = 0; i < 5; ++i) ForbidToken(any(), &mask);
      break;
    case 5:
      if (random() % 8 != 0) mask = MakeTokenMask(vocab, /*allowed=*/true);
      break;
  }
  return mask;
}

inline std::unique_ptr<EditedRow> RandomEdits(std::mt19937_64& random, uint32_t vocab) {
  auto row = std::make_unique<EditedRow>();
  const auto tokens = [&](size_t count) {
    std::vector<int32_t> out(count);
    const uint32_t range = Pick(random, {5u, 60u, vocab});
    const uint32_t from = random() % (vocab - range + 1);
    for (int32_t& token : out) token = static_cast<int32_t>(from + random() % range);
    return out;
  };
  row->prompt = tokens(1 + random() % 60);
  row->output = tokens(random() % 3 == 0 ? 0 : random() % 60);
  row->edits.repetition = Pick(random, {1.0f, 1.0f, 1.1f, 1.5f, 2.0f, 0.5f, 1e-38f});
  row->edits.frequency = Pick(random, {0.0f, 0.0f, 0.3f, 2.0f, -1.5f});
  row->edits.presence = Pick(random, {0.0f, 0.0f, 0.7f, -2.0f});
  if (random() % 2 == 0) {
    for (uint32_t token = random() % 90; token < vocab; token += 1 + random() % 300) {
      row->biases.push_back({token, Pick(random, {-100.0f, -1.0f, 0.5f, 5.0f, 100.0f})});
    }
  }
  if (random() % 3 == 0) row->allowed = RandomMask(random, vocab);
  if (random() % 3 == 0) row->mask = RandomMask(random, vocab);
  if (random() % 3 == 0) {
    for (int i = 0; i < 3; ++i) row->forbidden.push_back(static_cast<uint32_t>(random() % vocab));
  }
  row->View();
  return row;
}

}  // namespace bitshard
