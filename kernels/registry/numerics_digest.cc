#include "kernels/registry/numerics_digest.h"

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

constexpr uint64_t kProbeRows = 17;

// Every width, every kind of scale and offset, every dense type.
std::vector<PackedSpec> ProbeSpecs(uint64_t cols) {
  using Kind = ScaleKind;
  struct Form {
    int bits, group_size;
    Kind scale;
    ScaleOffset offset = ScaleOffset::kNone;
    int block_rows = 1;
  };
  constexpr Form kForms[] = {
      {2, 16, Kind::kSuperU4Min}, {2, 32, Kind::kF16, ScaleOffset::kZero},
      {3, 16, Kind::kSuperS8},    {4, 32, Kind::kF16, ScaleOffset::kMin},
      {4, 32, Kind::kE8m0},       {4, 64, Kind::kNested},
      {5, 32, Kind::kSuperU8Min}, {6, 48, Kind::kBf16, ScaleOffset::kZero},
      {7, 160, Kind::kF32},       {8, 16, Kind::kE4m3},
      {8, 32, Kind::kF16},        {8, 128, Kind::kF32, ScaleOffset::kNone, 16}};
  std::vector<PackedSpec> specs;
  for (const Form& form : kForms) {
    PackedSpec spec{.rows = kProbeRows,
                    .cols = cols,
                    .type = PackedSpec::Type::kInt,
                    .bits = form.bits,
                    .group_size = form.group_size,
                    .scale = form.scale,
                    .offset = form.offset,
                    .block_rows = form.block_rows};
    if (!spec.has_min() && form.offset != ScaleOffset::kZero)
      spec.zero_point = 1 << (form.bits - 1);
    if (form.scale == Kind::kE4m3) spec.scale_factor = 0.03125f;
    if (form.scale == Kind::kNested) {
      spec.scale_factor = 0.05f;
      spec.source_row_groups = spec.groups();
    }
    specs.push_back(spec);
  }
  for (const auto type : {PackedSpec::Type::kF32, PackedSpec::Type::kF16, PackedSpec::Type::kBf16})
    specs.push_back({.rows = kProbeRows, .cols = cols, .type = type});
  return specs;
}

PackedMatrix ProbeIntMatrix(Numbers& numbers, const PackedSpec& spec) {
  const size_t groups = spec.groups(), supers = spec.super_blocks();
  const auto bits = [&numbers](int count) {
    return static_cast<uint8_t>(numbers.Bits() >> (32 - count));
  };
  const auto scales = [&](size_t count) {
    std::vector<uint8_t> out;
    const auto put = [&out](const auto& value) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
      out.insert(out.end(), bytes, bytes + sizeof(value));
    };
    for (size_t i = 0; i < count; ++i) {
      switch (spec.scale) {
        case ScaleKind::kF16:
          put(F32ToF16(numbers.Next()));
          break;
        case ScaleKind::kBf16:
          put(F32ToBf16(numbers.Next()));
          break;
        case ScaleKind::kF32:
          put(numbers.Next());
          break;
        case ScaleKind::kE8m0:
          put(static_cast<uint8_t>(120 + bits(3)));
          break;
        case ScaleKind::kE4m3:
          put(bits(6));
          break;
        default:
          put(bits(8));
      }
    }
    return out;
  };
  const auto halves = [&numbers](size_t count) {
    std::vector<uint16_t> out(count);
    for (uint16_t& v : out) v = F32ToF16(numbers.Next() * 0.01f);
    return out;
  };
  const auto bytes = [&](size_t count, int width) {
    std::vector<uint8_t> out(count);
    for (uint8_t& v : out) v = bits(width);
    return out;
  };
  PackedMatrixBuilder builder(spec);
  for (uint64_t row = 0; row < spec.rows; ++row) {
    const auto codes = bytes(spec.cols, spec.bits), s = scales(groups);
    const auto zeros = bytes(groups, spec.bits), sub_mins = bytes(groups, 8);
    const auto mins = halves(groups), super_scales = halves(supers), super_mins = halves(supers);
    GroupRow of_row{.scales = s.data()};
    if (spec.offset == ScaleOffset::kMin) of_row.mins = mins.data();
    if (spec.offset == ScaleOffset::kZero) of_row.zeros = zeros.data();
    if (IsSuper(spec.scale)) of_row.super_scales = super_scales.data();
    if (IsSuper(spec.scale) && spec.has_min()) of_row.super_mins = super_mins.data();
    if (spec.scale == ScaleKind::kSuperU8Min) of_row.sub_mins = sub_mins.data();
    builder.SetIntRow(row, codes.data(), of_row);
  }
  if (spec.block_rows != 1) builder.SetSharedScales(scales(spec.row_blocks() * groups).data());
  if (spec.scale == ScaleKind::kNested) {
    const std::vector<float> table = numbers.Take(kNestedBlock, 0.02f),
                             second = numbers.Take(spec.rows * groups / kNestedBlock + 1, 1.0f);
    builder.SetNested(table.data(), second.data());
  }
  return std::move(builder).Build();
}

PackedMatrix ProbeMatrix(Numbers& numbers, const PackedSpec& spec) {
  if (spec.type == PackedSpec::Type::kInt) return ProbeIntMatrix(numbers, spec);
  PackedMatrixBuilder builder(spec);
  for (uint64_t row = 0; row < spec.rows; ++row) {
    std::vector<float> values = numbers.Take(spec.cols, 1.0f);
    std::vector<uint16_t> halves;
    for (const float v : values)
      halves.push_back(spec.type == PackedSpec::Type::kF16 ? F32ToF16(v) : F32ToBf16(v));
    builder.SetDenseRow(row, spec.type == PackedSpec::Type::kF32
                                 ? static_cast<const void*>(values.data())
                                 : halves.data());
  }
  return std::move(builder).Build();
}

// Rows of x: one, a few, more than kernels keep in registers, and as many as the forms for very
// many begin with, with a block that is not full.
constexpr int64_t kBatches[] = {1, 3, 7, 19};
constexpr int64_t kMaxBatch = 19;

// Of columns in whole segments but for the last, and where `whole`, all at once too.
void ProbeLinear(Numbers& numbers, uint64_t cols, int64_t segment, bool whole, Isa isa,
                 ThreadPool& pool, Fingerprint& print) {
  constexpr int64_t kSegmentsTotal = 3;
  PreparedActivations prepared;
  prepared.Reserve(kMaxBatch, static_cast<int64_t>(cols), 0);
  prepared.Reserve(kMaxBatch, static_cast<int64_t>(cols), segment);
  std::vector<float> y(kMaxBatch * kProbeRows);
  std::vector<int64_t> sums(kMaxBatch * kProbeRows), poison(kMaxBatch);
  for (const PackedSpec& spec : ProbeSpecs(cols)) {
    const PackedMatrix w = ProbeMatrix(numbers, spec);
    const std::vector<float> x = numbers.Take(kMaxBatch * cols, 3.0f);
    for (ActivationMode mode : {ActivationMode::kF32, ActivationMode::kA16, ActivationMode::kA8}) {
      // Others run as f32.
      if (spec.type != PackedSpec::Type::kInt && mode != ActivationMode::kF32) continue;
      auto all = BoundLinear::Bind(w, mode, 0, 0, isa);
      CHECK_OK(all.status());
      auto parts = BoundLinear::Bind(w, mode, segment, kSegmentsTotal, isa);
      CHECK_OK(parts.status());
      for (const int64_t m : kBatches) {
        if (whole) {
          prepared.Prepare(x.data(), m, w.cols(), w.cols(), 0, all->forms(), isa, pool);
          all->Run(prepared, y.data(), w.rows(), pool);
          for (int64_t i = 0; i < m * w.rows(); ++i) print.Add(y[i]);
        }
        prepared.Prepare(x.data(), m, w.cols(), w.cols(), segment, parts->forms(), isa, pool);
        parts->RunSegments(prepared, sums.data(), w.rows(), poison.data(), pool);
        for (int64_t i = 0; i < m * w.rows(); ++i) print.Add(static_cast<uint64_t>(sums[i]));
      }
    }
  }
}

// A prompt, then one more token; as separate calls, and at once with rotation.
void ProbeAttention(Numbers& numbers, Isa isa, ThreadPool& pool, Fingerprint& print) {
  constexpr int kPrompt = 19, kTokens = kPrompt + 1, kHeads = 2, kDim = 32, kRotary = 24;
  constexpr int kQWidth = kHeads * kDim;
  const std::vector<float> q = numbers.Take(kTokens * kQWidth, 4.0f);
  const std::vector<float> k = numbers.Take(kTokens * kDim, 4.0f),
                           v = numbers.Take(kTokens * kDim, 1.0f);
  const uint32_t blocks[] = {1, 0};
  const AttentionRow prompt{.blocks = blocks, .start = 0, .tokens = kPrompt, .first_row = 0};
  const AttentionRow next{.blocks = blocks, .start = kPrompt, .tokens = 1, .first_row = kPrompt};
  const auto table = RopeTable::Create(
      {.head_dim = kDim, .rotary_dim = kRotary, .theta = 10000, .max_positions = kTokens});
  CHECK_OK(table.status());
  std::vector<float> cos(kTokens * kRotary / 2), sin(cos.size());
  for (int t = 0; t < kTokens; ++t) table->CosSin(t, &cos[t * kRotary / 2], &sin[t * kRotary / 2]);
  for (const KvType type : kAllKvTypes) {
    AttentionConfig config;
    config.layout = {.type = type, .kv_heads = 1, .head_dim = kDim};
    config.q_heads = kHeads;
    config.kv_head_of_q = {0, 0};
    config.scale = 0.25f;
    auto attention = BoundAttention::Bind(config, pool.threads(), isa);
    CHECK_OK(attention.status());
    Buffer cache(2 * config.layout.block_bytes());
    std::vector<float> out(q.size());
    for (const AttentionRow& row : {prompt, next}) {
      attention->Append({&row, 1}, k.data(), v.data(), kDim, cache.data(), pool);
      attention->Run({&row, 1}, q.data(), kQWidth, cache.data(), out.data(), kQWidth, pool);
    }
    print.AddAll(out);
    const AttentionValues values{.q = q.data(),
                                 .q_stride = kQWidth,
                                 .k = k.data(),
                                 .v = v.data(),
                                 .kv_stride = kDim,
                                 .out = out.data(),
                                 .out_stride = kQWidth};
    for (const auto pairing : {RopeConfig::Pairing::kHalves, RopeConfig::Pairing::kInterleaved}) {
      const AttentionRotation rotation{.cos = cos.data(),
                                       .sin = sin.data(),
                                       .stride = kRotary / 2,
                                       .rotary_dim = kRotary,
                                       .pairing = pairing};
      for (const AttentionRow& row : {prompt, next})
        attention->AppendAndRun({&row, 1}, values, &rotation, cache.data(), pool);
      print.AddAll(out);
    }
  }
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
  std::vector<int64_t> sums(kWidth);  // of every magnitude
  for (int64_t i = 0; i < kWidth; ++i) {
    const uint64_t bits = uint64_t{numbers.Bits()} << 32 | numbers.Bits();
    sums[i] = static_cast<int64_t>(bits) >> (i % 64);
  }
  const auto sums_to_f32 = ChooseRowKernels(isa).sums;
  sums_to_f32(sums.data(), nullptr, nullptr, kWidth, y.data());
  print.AddAll(y);
  sums_to_f32(sums.data(), a.data(), b.data(), kWidth, y.data());
  print.AddAll(y);
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
  ProbeLinear(numbers, /*cols=*/160, /*segment=*/64, /*whole=*/true, isa, pool, print);
  // One segment of no whole tiles, as a rank with a single head has it.
  ProbeLinear(numbers, /*cols=*/108, /*segment=*/112, /*whole=*/false, isa, pool, print);
  ProbeAttention(numbers, isa, pool, print);
  ProbeSmall(numbers, isa, pool, print);
  return print.Hex();
}

}  // namespace bitshard
