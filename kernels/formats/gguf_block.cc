#include "kernels/formats/gguf_block.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {
namespace {

bool IsFiniteF16(uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }

}  // namespace

void GgufBlock::Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
                       float* out) const {
  const uint64_t blocks = rows * cols / layout_.block;
  CHECK_EQ(bytes.size(), blocks * layout_.block_bytes);
  for (uint64_t b = 0; b < blocks; ++b)
    DecodeBlock(bytes.data() + b * layout_.block_bytes, out + b * layout_.block);
}

PackedSpec GgufBlock::Canonical(uint64_t rows, const ColumnSlice& slice) const {
  const bool plain_min = layout_.min_at && !IsSuper(layout_.scale);
  return {.rows = rows,
          .cols = slice.cols(),
          .type = PackedSpec::Type::kInt,
          .bits = layout_.bits,
          .zero_point = layout_.zero_point,
          .group_size = layout_.group_size,
          .scale = layout_.scale,
          .offset = plain_min ? ScaleOffset::kMin : ScaleOffset::kNone,
          .first_group_offset = static_cast<int>(slice.begin - slice.read_begin)};
}

absl::Status GgufBlock::ToCanonical(absl::Span<const uint8_t> bytes, uint64_t row_begin,
                                    uint64_t row_count, const ColumnSlice& slice,
                                    PackedMatrixBuilder& builder) const {
  const uint64_t blocks = slice.read_cols() / layout_.block;
  const uint64_t block_groups = layout_.block / static_cast<uint64_t>(layout_.group_size);
  CHECK_EQ(bytes.size(), row_count * blocks * layout_.block_bytes);
  const bool super = IsSuper(layout_.scale);
  std::vector<uint8_t> codes(slice.read_cols());
  std::vector<uint8_t> scales(super ? blocks * block_groups : 0);
  std::vector<uint8_t> sub_mins(layout_.scale == ScaleKind::kSuperU8Min ? scales.size() : 0);
  std::vector<uint16_t> d(blocks), min(layout_.min_at ? blocks : 0);
  GroupRow groups{.scales = super ? static_cast<const void*>(scales.data()) : d.data()};
  if (layout_.min_at) (super ? groups.super_mins : groups.mins) = min.data();
  if (super) groups.super_scales = d.data();
  if (!sub_mins.empty()) groups.sub_mins = sub_mins.data();
  const uint8_t* block = bytes.data();
  for (uint64_t row = row_begin; row < row_begin + row_count; ++row) {
    for (uint64_t b = 0; b < blocks; ++b, block += layout_.block_bytes) {
      d[b] = F16BitsAt(block + layout_.d_at);
      if (layout_.min_at) min[b] = F16BitsAt(block + *layout_.min_at);
      const bool finite = IsFiniteF16(d[b]) && (!layout_.min_at || IsFiniteF16(min[b]));
      if (!finite) {
        return absl::DataLossError(absl::StrCat(
            name(), ": the ", IsFiniteF16(d[b]) ? "minimum" : "scale", " of row ", row, ", block ",
            slice.read_begin / layout_.block + b, " is not finite; the file is damaged"));
      }
      Unpack(block, {.codes = codes.data() + b * layout_.block,
                     .scales = super ? scales.data() + b * block_groups : nullptr,
                     .sub_mins = sub_mins.empty() ? nullptr : sub_mins.data() + b * block_groups});
    }
    builder.SetIntRow(row, codes.data() + (slice.begin - slice.read_begin), groups);
  }
  return absl::OkStatus();
}

}  // namespace bitshard
