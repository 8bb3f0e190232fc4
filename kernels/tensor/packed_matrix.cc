#include "kernels/tensor/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/float_types.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/p16x64.h"

namespace bitshard {
namespace {

int DenseBytes(PackedSpec::Type type) { return type == PackedSpec::Type::kF32 ? 4 : 2; }

struct Sizes {
  uint64_t tile_bytes = 0;  // codes of one row tile
  uint64_t code_bytes = 0;
  uint64_t scale_bytes = 0;
};

absl::StatusOr<Sizes> ComputeSizes(const PackedSpec& spec) {
  const auto refuse = [&spec](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("packed matrix ", spec.rows, " x ", spec.cols,
                                                   " ", spec.Describe(), ": ", why));
  };
  // Indices of rows and columns are int64 and products of them must not overflow anywhere.
  constexpr uint64_t kMaxSide = uint64_t{1} << 31;
  if (spec.rows > kMaxSide || spec.cols > kMaxSide) return refuse("a side is beyond 2^31");
  const uint64_t row_tiles = CeilDiv(spec.rows, kTileRows);
  Sizes sizes;
  std::optional<uint64_t> tile_bytes;
  if (spec.type == PackedSpec::Type::kInt) {
    if (spec.bits < 2 || spec.bits > 8) return refuse("codes must have 2 to 8 bits");
    if (spec.zero_point < 0 || spec.zero_point >= (1 << spec.bits))
      return refuse("the zero point is no code");
    if (spec.group_size <= 0) return refuse("the group size must be positive");
    if (spec.first_group_offset < 0 || spec.first_group_offset >= spec.group_size) {
      return refuse("the first group's offset must be below the group size");
    }
    tile_bytes = CheckedMul(CeilDiv(spec.cols, kTileCols), TileBytes(spec.bits));
    const auto scale_bytes = CheckedProduct(
        {row_tiles, spec.groups(), uint64_t{2} * kTileRows * (spec.has_min ? 2 : 1)});
    if (!scale_bytes) return refuse("too large");
    sizes.scale_bytes = *scale_bytes;
  } else {
    tile_bytes =
        CheckedProduct({RoundUp(spec.cols, kLaneCols), kTileRows, uint64_t(DenseBytes(spec.type))});
  }
  if (!tile_bytes) return refuse("too large");
  const auto code_bytes = CheckedMul(row_tiles, *tile_bytes);
  if (!code_bytes || *code_bytes > (uint64_t{1} << 62)) return refuse("too large");
  sizes.tile_bytes = *tile_bytes;
  sizes.code_bytes = *code_bytes;
  return sizes;
}

// Index of element (row, col) in a dense matrix's row tile.
int64_t DenseIndex(int64_t row, int64_t col) {
  return (col / kLaneCols * kTileRows + row % kTileRows) * kLaneCols +
         LaneOfColumn(static_cast<int>(col % kLaneCols));
}

}  // namespace

std::string PackedSpec::Describe() const {
  switch (type) {
    case Type::kF32:
      return "f32";
    case Type::kF16:
      return "f16";
    case Type::kBf16:
      return "bf16";
    case Type::kInt:
      break;
  }
  return absl::StrCat("int", bits, " zero=", zero_point, " group=", group_size,
                      has_min ? " min" : "");
}

absl::StatusOr<uint64_t> PackedBytes(const PackedSpec& spec) {
  ASSIGN_OR_RETURN(const Sizes sizes, ComputeSizes(spec));
  return sizes.code_bytes + sizes.scale_bytes;
}

void PackedMatrix::RowToF32(int64_t row, float* out) const { RowToF32(row, 0, cols(), out); }

void PackedMatrix::RowToF32(int64_t row, int64_t begin, int64_t end, float* out) const {
  DCHECK(row >= 0 && row < rows() && begin >= 0 && begin <= end && end <= cols());
  if (spec_.type != PackedSpec::Type::kInt) {
    for (int64_t k = begin; k < end; ++k) *out++ = ValueAt(row, k);
    return;
  }
  const uint8_t* codes = tile(row / kTileRows);
  const int r = static_cast<int>(row % kTileRows);
  for (int64_t k = begin; k < end;) {
    const int64_t run_begin = k / kLaneCols * kLaneCols;
    const int64_t run_end = std::min<int64_t>(end, run_begin + kLaneCols);
    const auto* words =
        reinterpret_cast<const uint32_t*>(codes + k / kTileCols * TileBytes(spec_.bits));
    uint8_t run[kLaneCols];
    GetRun(words, spec_.bits, r, static_cast<int>(k % kTileCols / kLaneCols), run);
    while (k < run_end) {
      const int64_t group = GroupOf(k);
      const int64_t group_end = (group + 1) * spec_.group_size - spec_.first_group_offset;
      const float scale = ScaleAt(row, group);
      const float min = spec_.has_min ? MinAt(row, group) : 0.0f;
      for (; k < std::min(run_end, group_end); ++k) {
        const float centred = static_cast<float>(run[k - run_begin] - spec_.zero_point);
        *out++ = spec_.has_min ? std::fma(centred, scale, min) : centred * scale;
      }
    }
  }
}

int PackedMatrix::CodeAt(int64_t row, int64_t col) const {
  const auto* words = reinterpret_cast<const uint32_t*>(tile(row / kTileRows) +
                                                        col / kTileCols * TileBytes(spec_.bits));
  return static_cast<int>(GetCode(words, spec_.bits, static_cast<int>(row % kTileRows),
                                  static_cast<int>(col % kTileCols)));
}

float PackedMatrix::ScaleAt(int64_t row, int64_t group) const {
  const int64_t slots = spec_.has_min ? 2 * kTileRows : kTileRows;
  return F16ToF32(
      scales(row / kTileRows)[group * slots + ScaleSlotOfRow(static_cast<int>(row % kTileRows))]);
}

float PackedMatrix::MinAt(int64_t row, int64_t group) const {
  return F16ToF32(scales(
      row /
      kTileRows)[(2 * group + 1) * kTileRows + ScaleSlotOfRow(static_cast<int>(row % kTileRows))]);
}

float PackedMatrix::ValueAt(int64_t row, int64_t col) const {
  const uint8_t* base = tile(row / kTileRows);
  const int64_t index = spec_.type == PackedSpec::Type::kInt ? 0 : DenseIndex(row, col);
  switch (spec_.type) {
    case PackedSpec::Type::kF32:
      return reinterpret_cast<const float*>(base)[index];
    case PackedSpec::Type::kF16:
      return F16ToF32(reinterpret_cast<const uint16_t*>(base)[index]);
    case PackedSpec::Type::kBf16:
      return Bf16ToF32(reinterpret_cast<const uint16_t*>(base)[index]);
    case PackedSpec::Type::kInt:
      break;
  }
  const float centred = static_cast<float>(CodeAt(row, col) - spec_.zero_point);
  // Padded columns may lie beyond the last group; they belong to it.
  const int64_t group = std::min(GroupOf(col), groups() - 1);
  const float scale = ScaleAt(row, group);
  return spec_.has_min ? std::fma(centred, scale, MinAt(row, group)) : centred * scale;
}

absl::StatusOr<PackedMatrixBuilder> PackedMatrixBuilder::Create(const PackedSpec& spec) {
  RETURN_IF_ERROR(PackedBytes(spec).status());
  return PackedMatrixBuilder(spec);
}

PackedMatrixBuilder::PackedMatrixBuilder(const PackedSpec& spec) {
  const absl::StatusOr<Sizes> sizes = ComputeSizes(spec);
  CHECK_OK(sizes.status());
  matrix_.spec_ = spec;
  matrix_.tile_bytes_ = static_cast<int64_t>(sizes->tile_bytes);
  matrix_.codes_ = Buffer(sizes->code_bytes);
  matrix_.scales_ = Buffer(sizes->scale_bytes);
}

void PackedMatrixBuilder::SetIntRow(uint64_t row, const uint8_t* codes, const uint16_t* scales,
                                    const uint16_t* mins) {
  const PackedSpec& spec = matrix_.spec_;
  CHECK(spec.type == PackedSpec::Type::kInt && row < spec.rows);
  CHECK(spec.groups() == 0 || (mins != nullptr) == spec.has_min);
  const uint64_t row_tile = row / kTileRows;
  const int r = static_cast<int>(row % kTileRows);
  uint8_t* tiles = matrix_.codes_.data() + row_tile * matrix_.tile_bytes_;
  for (uint64_t k = 0; k < RoundUp(spec.cols, kTileCols); k += kLaneCols) {
    auto* words = reinterpret_cast<uint32_t*>(tiles + k / kTileCols * TileBytes(spec.bits));
    const int run = static_cast<int>(k % kTileCols / kLaneCols);
    uint8_t padded[kLaneCols];
    const uint8_t* source = codes + k;
    if (k + kLaneCols > spec.cols) {
      for (uint64_t i = 0; i < kLaneCols; ++i) {
        padded[i] = k + i < spec.cols ? codes[k + i] : static_cast<uint8_t>(spec.zero_point);
      }
      source = padded;
    }
    PutRun(words, spec.bits, r, run, source);
  }
  const int slot = ScaleSlotOfRow(r);
  const int64_t slots = spec.has_min ? 2 * kTileRows : kTileRows;
  uint16_t* plane = matrix_.scales_.as<uint16_t>() + row_tile * matrix_.scale_stride();
  for (uint64_t g = 0; g < spec.groups(); ++g) {
    plane[g * slots + slot] = scales[g];
    if (spec.has_min) plane[g * slots + kTileRows + slot] = mins[g];
  }
}

void PackedMatrixBuilder::SetDenseRow(uint64_t row, const void* values) {
  const PackedSpec& spec = matrix_.spec_;
  CHECK(spec.type != PackedSpec::Type::kInt && row < spec.rows);
  uint8_t* tile = matrix_.codes_.data() + row / kTileRows * matrix_.tile_bytes_;
  const int bytes = DenseBytes(spec.type);
  const auto* in = static_cast<const uint8_t*>(values);
  for (uint64_t k = 0; k < spec.cols; ++k) {
    std::memcpy(tile + DenseIndex(static_cast<int64_t>(row), static_cast<int64_t>(k)) * bytes,
                in + k * bytes, bytes);
  }
}

PackedMatrix PackedMatrixBuilder::Build() && { return std::move(matrix_); }

}  // namespace bitshard
