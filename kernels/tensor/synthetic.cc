#include "kernels/tensor/synthetic.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"

namespace bitshard {
namespace {

constexpr int kLeastF16Exponent = -14;
constexpr int kBiasExponent = -4;

// FNV-1a, then mixed with the seed.
uint64_t KeyOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return SyntheticBits(hash, 0, seed & 0xffffffffu) ^ SyntheticBits(~hash, 0, seed >> 32);
}

// Values with a root mean square of about 1 / sqrt(cols).
int ExponentOf(const PackedSpec& spec, uint64_t whole_cols) {
  const int log2 = std::bit_width(whole_cols) - 1;
  const bool is_int = spec.type == PackedSpec::Type::kInt;
  const int exponent = is_int ? 1 - spec.bits - log2 / 2 : -(log2 + 1) / 2;
  const bool is_f16 =
      spec.type == PackedSpec::Type::kF16 || (is_int && spec.scale == ScaleKind::kF16);
  return is_f16 ? std::max(exponent, kLeastF16Exponent) : exponent;
}

template <typename T>
void Append(T value, uint8_t*& to) {
  std::memcpy(to, &value, sizeof(value));
  to += sizeof(value);
}

void AppendNumber(uint32_t draw, int exponent, ScaleKind kind, uint8_t*& to) {
  if (kind == ScaleKind::kF32) return Append(SyntheticF32(draw, exponent), to);
  Append(kind == ScaleKind::kF16 ? SyntheticF16(draw, exponent) : SyntheticBf16(draw, exponent),
         to);
}

void FillIntRows(const SyntheticSource& source, uint64_t row_begin, uint64_t row_end,
                 PackedMatrixBuilder& builder) {
  const PackedSpec& spec = builder.spec();
  const uint64_t first_octet = source.col_begin / 8;
  const uint64_t octets = CeilDiv(source.col_begin + spec.cols, 8) - first_octet;
  const uint64_t first_group = source.col_begin / static_cast<uint64_t>(spec.group_size);
  const uint64_t groups = spec.groups();
  const bool has_zeros = spec.offset == ScaleOffset::kZero;
  std::vector<uint8_t> codes(octets * 8), scales(groups * sizeof(float)), zeros(groups);
  for (uint64_t i = row_begin; i < row_end; ++i) {
    const uint64_t row = source.row_begin + i;
    for (uint64_t octet = 0; octet < octets; ++octet) {
      const uint64_t eight = SyntheticCodes(source.key, row, first_octet + octet, spec.bits);
      std::memcpy(codes.data() + 8 * octet, &eight, sizeof(eight));
    }
    uint8_t* to = scales.data();
    for (uint64_t g = 0; g < groups; ++g) {
      const SyntheticGroup group = SyntheticGroupOf(source.key, row, first_group + g, spec.bits);
      AppendNumber(group.draw, source.exponent, spec.scale, to);
      zeros[g] = static_cast<uint8_t>(group.zero);
    }
    builder.SetIntRow(i, codes.data() + source.col_begin % 8,
                      {.scales = scales.data(), .zeros = has_zeros ? zeros.data() : nullptr});
  }
}

void FillDenseRows(const SyntheticSource& source, uint64_t row_begin, uint64_t row_end,
                   PackedMatrixBuilder& builder) {
  const PackedSpec& spec = builder.spec();
  const ScaleKind kind = spec.type == PackedSpec::Type::kF32   ? ScaleKind::kF32
                         : spec.type == PackedSpec::Type::kF16 ? ScaleKind::kF16
                                                               : ScaleKind::kBf16;
  std::vector<uint8_t> values(spec.cols * sizeof(float));
  for (uint64_t i = row_begin; i < row_end; ++i) {
    uint8_t* to = values.data();
    const uint64_t end = source.col_begin + spec.cols;
    for (uint64_t col = source.col_begin; col < end;) {
      const uint64_t four = SyntheticBits(source.key, source.row_begin + i, col / 4);
      for (const uint64_t stop = std::min(end, col / 4 * 4 + 4); col < stop; ++col)
        AppendNumber(SyntheticDraw(four, col), source.exponent, kind, to);
    }
    builder.SetDenseRow(i, values.data());
  }
}

}  // namespace

absl::Status CheckSynthetic(const PackedSpec& spec) {
  if (spec.type != PackedSpec::Type::kInt) return absl::OkStatus();
  const bool plain = spec.scale == ScaleKind::kF16 || spec.scale == ScaleKind::kBf16 ||
                     spec.scale == ScaleKind::kF32;
  if (plain && spec.offset != ScaleOffset::kMin && spec.block_rows == 1) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("synthetic weights as ", spec.Describe(),
                   " cannot be made; those with f16, bf16 or f32 scales for each row can, "
                   "symmetric or with zero points, and dense ones"));
}

SyntheticSource SyntheticSourceOf(uint64_t seed, std::string_view name, const PackedSpec& spec,
                                  uint64_t whole_cols, uint64_t row_begin, uint64_t col_begin) {
  return {.key = KeyOf(seed, name),
          .row_begin = row_begin,
          .col_begin = col_begin,
          .exponent = ExponentOf(spec, whole_cols)};
}

void FillSyntheticRows(const SyntheticSource& source, uint64_t row_begin, uint64_t row_end,
                       PackedMatrixBuilder& builder) {
  CHECK_LE(row_end, builder.spec().rows);
  if (builder.spec().type == PackedSpec::Type::kInt)
    FillIntRows(source, row_begin, row_end, builder);
  else
    FillDenseRows(source, row_begin, row_end, builder);
}

void FillSyntheticVector(uint64_t seed, std::string_view name, uint64_t begin, uint64_t count,
                         float* out) {
  constexpr std::string_view kBias = ".bias";
  const bool is_bias =
      name.size() > kBias.size() && name.substr(name.size() - kBias.size()) == kBias;
  const uint64_t key = KeyOf(seed, name);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = begin + i;
    const uint32_t draw = SyntheticDraw(SyntheticBits(key, 0, at / 4), at);
    out[i] = is_bias ? std::bit_cast<float>(SyntheticF32(draw, kBiasExponent)) : 1.0f;
  }
}

}  // namespace bitshard
