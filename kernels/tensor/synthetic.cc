#include "kernels/tensor/synthetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/tensor/packed_sizes.h"

namespace bitshard {
namespace {

constexpr int kBiasExponent = -4;

// FNV-1a, then mixed with the seed.
uint64_t KeyOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return SyntheticBits(hash, 0, seed & 0xffffffffu) ^ SyntheticBits(~hash, 0, seed >> 32);
}

// Values have a root mean square of about 1 / sqrt(cols).
int DenseExponent(const PackedSpec& spec, uint64_t whole_cols) {
  const int exponent = -(std::bit_width(whole_cols) / 2);
  return spec.type == PackedSpec::Type::kF16 ? std::max(exponent, kLeastSyntheticF16) : exponent;
}

int ValueExponent(const PackedSpec& spec, uint64_t whole_cols) {
  return 1 - spec.bits - (std::bit_width(whole_cols) - 1) / 2;
}
// Of what the plane holds, where scales should be 2^exponent * [1, 2).
int ScaleExponent(const PackedSpec& spec, int exponent) {
  switch (spec.scale) {
    case ScaleKind::kF16:
      return std::max(exponent, kLeastSyntheticF16);
    case ScaleKind::kE4m3:
      return std::clamp(exponent - std::ilogb(spec.scale_factor), -9, 7);
    case ScaleKind::kSuperS8:
    case ScaleKind::kSuperU8Min:  // d times 16 .. 47
      return std::max(exponent - 5, kLeastSyntheticF16);
    case ScaleKind::kSuperU4Min:  // 4 .. 11
      return std::max(exponent - 3, kLeastSyntheticF16);
    default:
      return exponent;
  }
}

// The numbers of one row's groups, as the builder takes them.
class RowGroups {
 public:
  RowGroups(const SyntheticSource& source, const PackedSpec& spec)
      : source_(source),
        spec_(spec),
        first_group_(SyntheticFirstGroup(spec.scale, source.col_begin,
                                         static_cast<uint64_t>(spec.group_size))),
        scale_bytes_(spec.scale == ScaleKind::kSuperU8Min
                         ? 1
                         : static_cast<size_t>(ScaleBytes(spec.scale))) {
    const uint64_t groups = spec.groups();
    scales_.resize(groups * scale_bytes_);
    if (spec.scale == ScaleKind::kSuperU8Min) sub_mins_.resize(groups);
    if (spec.offset == ScaleOffset::kMin) mins_.resize(groups);
    if (spec.offset == ScaleOffset::kZero) zeros_.resize(groups);
    super_scales_.resize(spec.super_blocks());
    if (spec.has_min()) super_mins_.resize(spec.super_blocks());
  }

  // Of a row of the whole, or of a block of rows.
  void Fill(uint64_t row) {
    for (uint64_t g = 0; g < spec_.groups(); ++g) {
      const SyntheticGroup group = SyntheticGroupOf(source_.key, row, first_group_ + g, spec_.bits);
      const uint32_t scale = SyntheticScale(spec_.scale, group, source_.exponent);
      std::memcpy(scales_.data() + g * scale_bytes_, &scale, scale_bytes_);
      if (!sub_mins_.empty()) sub_mins_[g] = static_cast<uint8_t>(SyntheticSubMin(group));
      if (!mins_.empty()) mins_[g] = SyntheticMin(spec_.scale, group, source_.min_exponent);
      if (!zeros_.empty()) zeros_[g] = static_cast<uint8_t>(group.zero);
    }
    const uint64_t first_super = source_.col_begin / kSuperBlockCols;
    for (uint64_t s = 0; s < super_scales_.size(); ++s) {
      const uint32_t draw = SyntheticGroupOf(source_.key, row, first_super + s, spec_.bits).scale;
      super_scales_[s] = SyntheticF16(draw, source_.exponent);
      if (!super_mins_.empty()) super_mins_[s] = SyntheticF16(draw, source_.min_exponent);
    }
  }

  const std::vector<uint8_t>& scales() const { return scales_; }
  GroupRow numbers() const {
    const auto data = [](const auto& of) { return of.empty() ? nullptr : of.data(); };
    return {.scales = data(scales_),
            .mins = data(mins_),
            .zeros = data(zeros_),
            .sub_mins = data(sub_mins_),
            .super_scales = data(super_scales_),
            .super_mins = data(super_mins_)};
  }

 private:
  const SyntheticSource& source_;
  const PackedSpec& spec_;
  const uint64_t first_group_;
  const size_t scale_bytes_;
  std::vector<uint8_t> scales_, zeros_, sub_mins_;
  std::vector<uint16_t> mins_, super_scales_, super_mins_;
};

// What no single row has.
void FillShared(const SyntheticSource& source, PackedMatrixBuilder& builder) {
  const PackedSpec& spec = builder.spec();
  if (spec.block_rows != 1) {
    const uint64_t first =
        spec.block_rows == 0 ? 0 : source.row_begin / static_cast<uint64_t>(spec.block_rows);
    RowGroups block(source, spec);
    std::vector<uint8_t> scales;
    for (uint64_t i = 0; i < spec.row_blocks(); ++i) {
      block.Fill(first + i);
      scales.insert(scales.end(), block.scales().begin(), block.scales().end());
    }
    builder.SetSharedScales(scales.data());
  }
  if (spec.scale == ScaleKind::kNested) {
    const absl::StatusOr<PackedSizes> sizes = SizesOf(spec);
    CHECK_OK(sizes.status());
    std::vector<uint32_t> table(kNestedBlock);
    std::vector<uint32_t> second(sizes->nested_bytes / sizeof(float) - kNestedBlock);
    for (uint32_t i = 0; i < kNestedBlock; ++i) table[i] = SyntheticNestedTable(source.key, i);
    for (uint64_t i = 0; i < second.size(); ++i) {
      second[i] =
          SyntheticNestedSecond(source.key, spec.first_block / kNestedBlock + i, source.exponent);
    }
    builder.SetNested(reinterpret_cast<const float*>(table.data()),
                      reinterpret_cast<const float*>(second.data()));
  }
}

void FillIntRows(const SyntheticSource& source, uint64_t row_begin, uint64_t row_end,
                 PackedMatrixBuilder& builder) {
  const PackedSpec& spec = builder.spec();
  if (row_begin == 0 && row_end > 0 && spec.cols > 0) FillShared(source, builder);
  const uint64_t first_octet = source.col_begin / 8;
  const uint64_t octets = CeilDiv(source.col_begin + spec.cols, 8) - first_octet;
  std::vector<uint8_t> codes(octets * 8);
  RowGroups groups(source, spec);
  for (uint64_t i = row_begin; i < row_end; ++i) {
    const uint64_t row = source.row_begin + i;
    for (uint64_t octet = 0; octet < octets; ++octet) {
      const uint64_t eight = SyntheticCodes(source.key, row, first_octet + octet, spec.bits);
      std::memcpy(codes.data() + 8 * octet, &eight, sizeof(eight));
    }
    if (source.centred) {
      for (uint8_t& code : codes) code = static_cast<uint8_t>(SyntheticCentred(code, spec.bits));
    }
    if (spec.block_rows == 1) groups.Fill(row);
    builder.SetIntRow(i, codes.data() + source.col_begin % 8, groups.numbers());
  }
}

void FillDenseRows(const SyntheticSource& source, uint64_t row_begin, uint64_t row_end,
                   PackedMatrixBuilder& builder) {
  const PackedSpec& spec = builder.spec();
  const ScaleKind kind = spec.type == PackedSpec::Type::kF32   ? ScaleKind::kF32
                         : spec.type == PackedSpec::Type::kF16 ? ScaleKind::kF16
                                                               : ScaleKind::kBf16;
  const auto bytes = static_cast<size_t>(ScaleBytes(kind));
  std::vector<uint8_t> values(spec.cols * bytes);
  for (uint64_t i = row_begin; i < row_end; ++i) {
    uint8_t* to = values.data();
    const uint64_t end = source.col_begin + spec.cols;
    for (uint64_t col = source.col_begin; col < end;) {
      const uint64_t four = SyntheticBits(source.key, source.row_begin + i, col / 4);
      for (const uint64_t stop = std::min(end, col / 4 * 4 + 4); col < stop; ++col) {
        const uint32_t value = SyntheticFloat(kind, SyntheticDraw(four, col), source.exponent);
        std::memcpy(to, &value, bytes);
        to += bytes;
      }
    }
    builder.SetDenseRow(i, values.data());
  }
}

}  // namespace

absl::Status CheckSynthetic(const PackedSpec& spec) {
  if (spec.type != PackedSpec::Type::kInt) return absl::OkStatus();
  const bool multiplies = spec.scale == ScaleKind::kE4m3;
  if (!multiplies && spec.scale != ScaleKind::kNested) return absl::OkStatus();
  if (std::isfinite(spec.scale_factor) && !(multiplies && spec.scale_factor <= 0))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("synthetic weights as ", spec.Describe(), " with a scale factor of ",
                   spec.scale_factor, ": it must be finite", multiplies ? " and above 0" : ""));
}

SyntheticSource SyntheticSourceOf(uint64_t seed, std::string_view name, const PackedSpec& spec,
                                  uint64_t whole_cols, uint64_t row_begin, uint64_t col_begin) {
  SyntheticSource source;
  source.key = KeyOf(seed, name);
  source.row_begin = row_begin;
  source.col_begin = col_begin;
  if (spec.type != PackedSpec::Type::kInt) {
    source.exponent = DenseExponent(spec, whole_cols);
    return source;
  }
  const int exponent = ValueExponent(spec, whole_cols);
  source.exponent = ScaleExponent(spec, exponent);
  // Where codes are not centred already, a minimum takes half their range.
  const int least = IsSuper(spec.scale) ? source.exponent : std::max(exponent, kLeastSyntheticF16);
  source.min_exponent = least + (spec.zero_point == 0 ? spec.bits - 1 : 0);
  source.centred =
      spec.offset != ScaleOffset::kZero && (spec.scale == ScaleKind::kE8m0 || spec.block_rows != 1);
  return source;
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
