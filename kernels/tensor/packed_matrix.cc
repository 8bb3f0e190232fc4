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
#include "kernels/tensor/packed_sizes.h"

namespace bitshard {
namespace {

int DenseBytes(PackedSpec::Type type) { return type == PackedSpec::Type::kF32 ? 4 : 2; }

const char* NameOf(ScaleKind kind) {
  constexpr const char* kNames[] = {"f16",    "bf16",     "f32",          "e8m0",        "e4m3",
                                    "nested", "f16 x i8", "f16 x u8 min", "f16 x u4 min"};
  return kNames[static_cast<int>(kind)];
}

// Second-level numbers of a kNested plane: those of the blocks that its rows touch.
uint64_t NestedBlocks(const PackedSpec& spec) {
  if (spec.rows == 0 || spec.groups() == 0) return 0;
  const uint64_t last =
      spec.first_block + (spec.rows - 1) * spec.source_row_groups + spec.groups() - 1;
  return last / kNestedBlock - spec.first_block / kNestedBlock + 1;
}

// Bytes of one record of a row tile.
uint64_t RecordBytes(const PackedSpec& spec) {
  const uint64_t scale = kTileRows * ScaleBytes(spec.scale);
  if (IsSuper(spec.scale)) {
    return (spec.has_min() ? 2 : 1) * kTileRows * 2 + scale * (kSuperBlockCols / spec.group_size);
  }
  switch (spec.offset) {
    case ScaleOffset::kMin:
      return scale + 2 * kTileRows;
    case ScaleOffset::kZero:
      return scale + (spec.bits == 2 ? kTileRows / 4 : kTileRows);
    default:
      return scale;
  }
}

// Empty, or what makes no sense about the scales of an integer matrix.
const char* WrongScales(const PackedSpec& spec) {
  if (spec.group_size <= 0) return "the group size must be positive";
  const int period = IsSuper(spec.scale) ? kSuperBlockCols : spec.group_size;
  if (spec.first_group_offset < 0 || spec.first_group_offset >= period)
    return "the first group's offset must be below the group size";
  if (IsSuper(spec.scale) &&
      (kSuperBlockCols % spec.group_size != 0 || spec.offset != ScaleOffset::kNone)) {
    return "a super-block has whole groups and no other offset";
  }
  if (spec.offset == ScaleOffset::kZero && spec.zero_point != 0)
    return "zero points a group and one for all exclude each other";
  if (spec.block_rows < 0 || spec.first_row_offset < 0 ||
      (spec.first_row_offset > 0 && spec.first_row_offset >= spec.block_rows)) {
    return "the first block's row offset must be below the rows of a block";
  }
  if (spec.block_rows != 1 &&
      (spec.offset != ScaleOffset::kNone || spec.scale >= ScaleKind::kNested)) {
    return "rows can share plain scales only";
  }
  if (spec.scale == ScaleKind::kNested &&
      (spec.source_row_groups < spec.groups() || spec.source_row_groups > uint64_t{1} << 31 ||
       spec.first_block > uint64_t{1} << 61)) {
    return "the blocks of the source are fewer than the groups of a row";
  }
  return "";
}

}  // namespace

absl::StatusOr<PackedSizes> SizesOf(const PackedSpec& spec) {
  const auto refuse = [&spec](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("packed matrix ", spec.rows, " x ", spec.cols,
                                                   " ", spec.Describe(), ": ", why));
  };
  // Indices of rows and columns are int64 and products of them must not overflow anywhere.
  constexpr uint64_t kMaxSide = uint64_t{1} << 31;
  if (spec.rows > kMaxSide || spec.cols > kMaxSide) return refuse("a side is beyond 2^31");
  const uint64_t row_tiles = CeilDiv(spec.rows, kTileRows);
  PackedSizes sizes;
  std::optional<uint64_t> tile_bytes;
  if (spec.type == PackedSpec::Type::kInt) {
    if (spec.bits < 2 || spec.bits > 8) return refuse("codes must have 2 to 8 bits");
    if (spec.zero_point < 0 || spec.zero_point >= (1 << spec.bits))
      return refuse("the zero point is no code");
    const char* wrong = WrongScales(spec);
    if (*wrong != 0) return refuse(wrong);
    tile_bytes = CheckedMul(CeilDiv(spec.cols, kTileCols), TileBytes(spec.bits));
    const bool shared = spec.block_rows != 1;
    sizes.record_bytes = shared ? ScaleBytes(spec.scale) : RecordBytes(spec);
    const auto tile_scales =
        CheckedMul(IsSuper(spec.scale) ? spec.super_blocks() : spec.groups(), sizes.record_bytes);
    const auto scale_bytes = tile_scales
                                 ? CheckedMul(shared ? spec.row_blocks() : row_tiles, *tile_scales)
                                 : std::nullopt;
    if (!scale_bytes || *scale_bytes > (uint64_t{1} << 62)) return refuse("too large");
    sizes.scale_tile_bytes = *tile_scales;
    sizes.scale_bytes = *scale_bytes;
    if (spec.scale == ScaleKind::kNested)
      sizes.nested_bytes = (kNestedBlock + NestedBlocks(spec)) * sizeof(float);
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

namespace {

// Index of element (row, col) in a dense matrix's row tile.
int64_t DenseIndex(int64_t row, int64_t col) {
  return (col / kLaneCols * kTileRows + row % kTileRows) * kLaneCols +
         LaneOfColumn(static_cast<int>(col % kLaneCols));
}

// values[count] of `bytes` bytes each, one to every `stride` bytes from `to` on.
template <size_t bytes>
void Scatter(const uint8_t* values, size_t count, uint8_t* to, size_t stride) {
  for (size_t i = 0; i < count; ++i, values += bytes, to += stride) std::memcpy(to, values, bytes);
}

void ScatterBytes(const void* values, int bytes, size_t count, uint8_t* to, size_t stride) {
  const auto* from = static_cast<const uint8_t*>(values);
  if (bytes == 1) return Scatter<1>(from, count, to, stride);
  if (bytes == 2) return Scatter<2>(from, count, to, stride);
  return Scatter<4>(from, count, to, stride);
}

// A dense row into its places: runs of 16 columns, each in lane order, kTileRows runs apart.
template <typename T>
void InterleaveRuns(const void* values, uint64_t cols, uint8_t* out) {
  const auto* in = static_cast<const uint8_t*>(values);
  for (uint64_t k = 0; k < cols; k += kLaneCols) {
    T run[kLaneCols] = {}, lanes[kLaneCols];
    std::memcpy(run, in + k * sizeof(T), std::min<uint64_t>(kLaneCols, cols - k) * sizeof(T));
    for (int c = 0; c < kLaneCols; ++c) lanes[LaneOfColumn(c)] = run[c];
    std::memcpy(out + k * kTileRows * sizeof(T), lanes, sizeof(lanes));
  }
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
  std::string text = absl::StrCat("int", bits);
  if (offset == ScaleOffset::kZero) {
    absl::StrAppend(&text, " zeros");
  } else {
    absl::StrAppend(&text, " zero=", zero_point);
  }
  absl::StrAppend(&text, " group=", group_size, " scale=", NameOf(scale));
  if (offset == ScaleOffset::kMin) absl::StrAppend(&text, " min");
  if (block_rows != 1) absl::StrAppend(&text, " rows=", block_rows);
  return text;
}

absl::StatusOr<uint64_t> PackedBytes(const PackedSpec& spec) {
  ASSIGN_OR_RETURN(const PackedSizes sizes, SizesOf(spec));
  return sizes.code_bytes + sizes.scale_bytes + sizes.nested_bytes;
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
      const float min = spec_.has_min() ? MinAt(row, group) : 0.0f;
      const int zero = ZeroAt(row, group);
      for (; k < std::min(run_end, group_end); ++k) {
        const float centred = static_cast<float>(run[k - run_begin] - zero);
        *out++ = spec_.has_min() ? std::fma(centred, scale, min) : centred * scale;
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

ScaleView ScaleViewOf(const PackedSpec& spec, int64_t record_bytes, int64_t tile_bytes) {
  ScaleView view;
  view.kind = spec.scale;
  view.offset = spec.offset;
  view.has_min = spec.has_min();
  view.has_zeros = spec.offset == ScaleOffset::kZero;
  view.shared_rows = spec.block_rows != 1;
  view.bits = spec.bits;
  view.zero_point = spec.zero_point;
  view.group_size = spec.group_size;
  view.first_group_offset = spec.first_group_offset;
  view.record_groups = IsSuper(spec.scale) ? kSuperBlockCols / spec.group_size : 1;
  view.record_bytes = record_bytes;
  view.tile_bytes = tile_bytes;
  view.rows = static_cast<int64_t>(spec.rows);
  view.factor = spec.scale_factor;
  if (spec.scale == ScaleKind::kNested) {
    view.first_block = static_cast<int64_t>(spec.first_block % kNestedBlock);
    view.row_blocks = static_cast<int64_t>(spec.source_row_groups);
  }
  view.block_rows = spec.block_rows;
  view.first_row_offset = spec.first_row_offset;
  view.groups = static_cast<int64_t>(spec.groups());
  return view;
}

ScaleView PackedMatrix::scale_view() const {
  ScaleView view = ScaleViewOf(spec_, record_bytes_, scale_tile_bytes_);
  view.plane = scales_.data();
  if (spec_.scale == ScaleKind::kNested) {
    view.table = nested_.as<float>();
    view.second = view.table + kNestedBlock;
  }
  return view;
}

float PackedMatrix::ScaleAt(int64_t row, int64_t group) const {
  return bitshard::ScaleAt(scale_view(), row / kTileRows,
                           ScaleSlotOfRow(static_cast<int>(row % kTileRows)), group);
}

float PackedMatrix::MinAt(int64_t row, int64_t group) const {
  return bitshard::MinAt(scale_view(), row / kTileRows,
                         ScaleSlotOfRow(static_cast<int>(row % kTileRows)), group);
}

int PackedMatrix::ZeroAt(int64_t row, int64_t group) const {
  return bitshard::ZeroAt(scale_view(), row / kTileRows,
                          ScaleSlotOfRow(static_cast<int>(row % kTileRows)), group);
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
  // Padded columns may lie beyond the last group; they belong to it.
  const int64_t group = std::min(GroupOf(col), groups() - 1);
  const float centred = static_cast<float>(CodeAt(row, col) - ZeroAt(row, group));
  const float scale = ScaleAt(row, group);
  return spec_.has_min() ? std::fma(centred, scale, MinAt(row, group)) : centred * scale;
}

absl::StatusOr<PackedMatrixBuilder> PackedMatrixBuilder::Create(const PackedSpec& spec) {
  RETURN_IF_ERROR(PackedBytes(spec).status());
  return PackedMatrixBuilder(spec);
}

PackedMatrixBuilder::PackedMatrixBuilder(const PackedSpec& spec, MemoryArena* arena) {
  const absl::StatusOr<PackedSizes> sizes = SizesOf(spec);
  CHECK_OK(sizes.status());
  matrix_.spec_ = spec;
  matrix_.tile_bytes_ = static_cast<int64_t>(sizes->tile_bytes);
  matrix_.codes_ = Buffer(sizes->code_bytes, arena);
  matrix_.record_bytes_ = static_cast<int64_t>(sizes->record_bytes);
  matrix_.scale_tile_bytes_ = static_cast<int64_t>(sizes->scale_tile_bytes);
  matrix_.scales_ = Buffer(sizes->scale_bytes, arena);
  matrix_.nested_ = Buffer(sizes->nested_bytes, arena);
}

void PackedMatrixBuilder::SetIntRow(uint64_t row, const uint8_t* codes, const GroupRow& groups) {
  const PackedSpec& spec = matrix_.spec_;
  CHECK(spec.type == PackedSpec::Type::kInt && row < spec.rows);
  auto* tiles =
      reinterpret_cast<uint32_t*>(matrix_.codes_.data() + row / kTileRows * matrix_.tile_bytes_);
  const int r = static_cast<int>(row % kTileRows);
  const uint64_t whole = spec.cols / kTileCols;
  PutRow(tiles, spec.bits, r, codes, static_cast<int64_t>(whole));
  if (const uint64_t rest = spec.cols % kTileCols; rest != 0) {
    uint8_t padded[kTileCols];
    std::memset(padded, spec.zero_point, kTileCols);
    std::memcpy(padded, codes + whole * kTileCols, rest);
    PutRow(tiles + whole * TileBytes(spec.bits) / sizeof(uint32_t), spec.bits, r, padded, 1);
  }
  if (spec.block_rows == 1 && spec.groups() > 0) SetGroups(row, groups);
}

void PackedMatrixBuilder::SetGroups(uint64_t row, const GroupRow& groups) {
  const PackedSpec& spec = matrix_.spec_;
  CHECK(groups.scales != nullptr &&
        (groups.mins != nullptr) == (spec.offset == ScaleOffset::kMin) &&
        (groups.zeros != nullptr) == (spec.offset == ScaleOffset::kZero) &&
        (groups.sub_mins != nullptr) == (spec.scale == ScaleKind::kSuperU8Min) &&
        (groups.super_scales != nullptr) == IsSuper(spec.scale) &&
        (groups.super_mins != nullptr) == (IsSuper(spec.scale) && spec.has_min()));
  const int slot = ScaleSlotOfRow(static_cast<int>(row % kTileRows));
  const auto record_bytes = static_cast<size_t>(matrix_.record_bytes_);
  uint8_t* plane =
      matrix_.scales_.data() + row / kTileRows * static_cast<uint64_t>(matrix_.scale_tile_bytes_);
  const size_t count = spec.groups();
  const int bytes = ScaleBytes(spec.scale);
  if (!IsSuper(spec.scale)) {
    ScatterBytes(groups.scales, bytes, count, plane + slot * bytes, record_bytes);
    uint8_t* const offsets = plane + kTileRows * bytes;
    if (groups.mins != nullptr)
      ScatterBytes(groups.mins, 2, count, offsets + 2 * slot, record_bytes);
    if (groups.zeros != nullptr && spec.bits != 2)
      ScatterBytes(groups.zeros, 1, count, offsets + slot, record_bytes);
    if (groups.zeros != nullptr && spec.bits == 2) {
      for (size_t g = 0; g < count; ++g) {
        uint8_t& byte = offsets[g * record_bytes + slot / 4];
        byte = static_cast<uint8_t>(byte | groups.zeros[g] << slot % 4 * 2);
      }
    }
    return;
  }
  const size_t supers = spec.super_blocks();
  ScatterBytes(groups.super_scales, 2, supers, plane + 2 * slot, record_bytes);
  uint8_t* subs = plane + 2 * kTileRows;
  if (groups.super_mins != nullptr) {
    ScatterBytes(groups.super_mins, 2, supers, subs + 2 * slot, record_bytes);
    subs += 2 * kTileRows;
  }
  const size_t record_groups = kSuperBlockCols / static_cast<size_t>(spec.group_size);
  const auto* scales = static_cast<const uint8_t*>(groups.scales);
  for (size_t begin = 0; begin < count; begin += record_groups, subs += record_bytes) {
    const size_t n = std::min(record_groups, count - begin);
    const size_t stride = static_cast<size_t>(kTileRows * bytes);
    ScatterBytes(scales + begin, 1, n, subs + slot, stride);
    if (groups.sub_mins != nullptr)
      ScatterBytes(groups.sub_mins + begin, 1, n, subs + kTileRows + slot, stride);
  }
}

void PackedMatrixBuilder::SetSharedScales(const void* scales) {
  CHECK_NE(matrix_.spec_.block_rows, 1);
  if (matrix_.scales_.bytes() > 0)
    std::memcpy(matrix_.scales_.data(), scales, matrix_.scales_.bytes());
}

void PackedMatrixBuilder::SetNested(const float* table, const float* second) {
  CHECK(matrix_.spec_.scale == ScaleKind::kNested);
  std::memcpy(matrix_.nested_.data(), table, kNestedBlock * sizeof(float));
  std::memcpy(matrix_.nested_.data() + kNestedBlock * sizeof(float), second,
              matrix_.nested_.bytes() - kNestedBlock * sizeof(float));
}

void PackedMatrixBuilder::SetDenseRow(uint64_t row, const void* values) {
  const PackedSpec& spec = matrix_.spec_;
  CHECK(spec.type != PackedSpec::Type::kInt && row < spec.rows);
  uint8_t* tile = matrix_.codes_.data() + row / kTileRows * matrix_.tile_bytes_;
  if (DenseBytes(spec.type) == 4)
    InterleaveRuns<uint32_t>(values, spec.cols, tile + row % kTileRows * kLaneCols * 4);
  else
    InterleaveRuns<uint16_t>(values, spec.cols, tile + row % kTileRows * kLaneCols * 2);
}

PackedMatrix PackedMatrixBuilder::Build() && { return std::move(matrix_); }

}  // namespace bitshard
