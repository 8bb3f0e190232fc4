#include "kernels/registry/numerics_digest.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/base/math.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/attention.h"
#include "kernels/registry/elementwise.h"
#include "kernels/registry/linear.h"
#include "kernels/registry/rope.h"

namespace bitshard {
namespace {

// Two FNV-1a sums with different starts: a fingerprint, not a signature.
class Fingerprint {
 public:
  void Add(uint64_t word) {
    for (int i = 0; i < 8; ++i) {
      const uint64_t byte = (word >> (8 * i)) & 255;
      a_ = (a_ ^ byte) * 0x100000001b3ull;
      b_ = (b_ ^ byte) * 0x100000001b3ull;
    }
  }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(float value) { Add(uint64_t{std::bit_cast<uint32_t>(value)}); }
  template <typename Range>
  void AddAll(const Range& values) {
    for (const auto& v : values) Add(v);
  }
  std::string Hex() const { return absl::StrFormat("%016x%016x", a_, b_); }

 private:
  uint64_t a_ = 0xcbf29ce484222325ull;
  uint64_t b_ = 0x84222325cbf29ce4ull;
};

// Numbers in (-1, 1) that need no library.
class Numbers {
 public:
  float Next() { return static_cast<float>(static_cast<int32_t>(Bits())) * 0x1p-31f; }
  uint32_t Bits() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state_ >> 32);
  }
  std::vector<float> Take(size_t count, float scale) {
    std::vector<float> out(count);
    for (float& v : out) v = Next() * scale;
    return out;
  }

 private:
  uint64_t state_ = 1;
};

void ProbeMath(Numbers& numbers, Fingerprint& print) {
  for (int i = 0; i < 64; ++i) {
    const double x = numbers.Next();
    print.Add(ExpF32(static_cast<float>(x * 100)));
    print.Add(Exp(x * 700));
    print.Add(Log(std::fabs(x) + 1e-9));
    print.Add(Sin(x * 1e6));
    print.Add(Cos(x * 1e6));
    print.Add(Pow(10000.0, x));
  }
}

PackedMatrix ProbeMatrix(Numbers& numbers, PackedSpec::Type type, int bits) {
  constexpr uint64_t kRows = 24, kCols = 160;
  const bool is_int = type == PackedSpec::Type::kInt;
  PackedMatrixBuilder builder({.rows = kRows,
                               .cols = kCols,
                               .type = type,
                               .bits = bits,
                               .zero_point = bits == 8 ? 128 : 0,
                               .group_size = is_int ? 32 : 0,
                               .has_min = bits == 4});
  for (uint64_t row = 0; row < kRows; ++row) {
    if (is_int) {
      std::array<uint8_t, kCols> codes;
      std::array<uint16_t, kCols / 32> scales, mins;
      for (uint8_t& c : codes) c = static_cast<uint8_t>(numbers.Bits() >> (32 - bits));
      for (uint16_t& s : scales) s = F32ToF16(numbers.Next());
      for (uint16_t& m : mins) m = F32ToF16(numbers.Next());
      builder.SetIntRow(row, codes.data(), scales.data(), bits == 4 ? mins.data() : nullptr);
    } else {
      std::array<uint16_t, kCols> values;
      for (uint16_t& v : values) v = F32ToBf16(numbers.Next());
      builder.SetDenseRow(row, values.data());
    }
  }
  return std::move(builder).Build();
}

void ProbeLinear(Numbers& numbers, Isa isa, ThreadPool& pool, Fingerprint& print) {
  constexpr int64_t kRows = 3, kSegment = 64;
  const PackedMatrix matrices[] = {ProbeMatrix(numbers, PackedSpec::Type::kInt, 4),
                                   ProbeMatrix(numbers, PackedSpec::Type::kInt, 8),
                                   ProbeMatrix(numbers, PackedSpec::Type::kBf16, 0)};
  for (const PackedMatrix& w : matrices) {
    const std::vector<float> x = numbers.Take(kRows * w.cols(), 3.0f);
    for (ActivationMode mode : {ActivationMode::kF32, ActivationMode::kA16}) {
      PreparedActivations prepared;
      prepared.Reserve(kRows, w.cols(), 0);
      prepared.Reserve(kRows, w.cols(), kSegment);
      auto whole = BoundLinear::Bind(w, mode, 0, 0, isa);
      CHECK_OK(whole.status());
      std::vector<float> y(kRows * w.rows());
      prepared.Prepare(x.data(), kRows, w.cols(), w.cols(), 0, whole->forms(), isa, pool);
      whole->Run(prepared, y.data(), w.rows(), pool);
      print.AddAll(y);
      auto parts = BoundLinear::Bind(w, mode, kSegment, 3, isa);
      CHECK_OK(parts.status());
      std::vector<int64_t> sums(kRows * w.rows());
      int64_t poison[kRows] = {};
      prepared.Prepare(x.data(), kRows, w.cols(), w.cols(), kSegment, parts->forms(), isa, pool);
      parts->RunSegments(prepared, sums.data(), w.rows(), poison, pool);
      for (int64_t s : sums) print.Add(static_cast<uint64_t>(s));
    }
  }
}

void ProbeAttention(Numbers& numbers, Isa isa, ThreadPool& pool, Fingerprint& print) {
  constexpr int kTokens = 19, kHeads = 2, kDim = 32;
  AttentionConfig config;
  config.layout = {.type = KvType::kBf16, .kv_heads = 1, .head_dim = kDim};
  config.q_heads = kHeads;
  config.kv_head_of_q = {0, 0};
  config.scale = 0.25f;
  auto attention = BoundAttention::Bind(config, pool.threads(), isa);
  CHECK_OK(attention.status());
  Buffer cache(2 * config.layout.block_bytes());
  const uint32_t blocks[] = {1, 0};
  const AttentionRow row{.blocks = blocks, .start = 0, .tokens = kTokens, .first_row = 0};
  const std::vector<float> q = numbers.Take(kTokens * kHeads * kDim, 4.0f);
  const std::vector<float> k = numbers.Take(kTokens * kDim, 4.0f),
                           v = numbers.Take(kTokens * kDim, 1.0f);
  std::vector<float> out(q.size());
  attention->Append({&row, 1}, k.data(), v.data(), kDim, cache.data(), pool);
  attention->Run({&row, 1}, q.data(), kHeads * kDim, cache.data(), out.data(), kHeads * kDim, pool);
  print.AddAll(out);
}

void ProbeSmall(Numbers& numbers, Isa isa, ThreadPool& pool, Fingerprint& print) {
  constexpr int64_t kWidth = 83;
  const std::vector<float> a = numbers.Take(kWidth, 8.0f), b = numbers.Take(kWidth, 8.0f);
  std::vector<float> y(kWidth);
  RmsNorm(a.data(), kWidth, b.data(), 1e-5f, 1, kWidth, y.data(), kWidth, isa, pool);
  print.AddAll(y);
  for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    GatedAct(activation, a.data(), kWidth, b.data(), kWidth, 1, kWidth, y.data(), kWidth, isa,
             pool);
    print.AddAll(y);
  }
  const auto table =
      RopeTable::Create({.head_dim = 32, .rotary_dim = 32, .theta = 10000, .max_positions = 1000});
  CHECK_OK(table.status());
  float cos[16], sin[16];
  table->CosSin(777, cos, sin);
  print.AddAll(cos);
  print.AddAll(sin);
}

}  // namespace

std::string NumericsDigest(Isa isa) {
  ThreadPool pool(1);
  SetFloatEnvironment();
  Numbers numbers;
  Fingerprint print;
  ProbeMath(numbers, print);
  ProbeLinear(numbers, isa, pool, print);
  ProbeAttention(numbers, isa, pool, print);
  ProbeSmall(numbers, isa, pool, print);
  return print.Hex();
}

}  // namespace bitshard
