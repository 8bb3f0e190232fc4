// The device's order holds the same codes and scales, element by element and in any cut; read back
// here by the words of device_matrix.h and scale_plane.h alone.
#include "kernels/tensor/device_matrix.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include <gtest/gtest.h>

#include "kernels/tensor/p16x64.h"
#include "tests/kernels/random_matrix.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

template <typename T>
T Number(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Word `word` of a lane: chunks of 4, 2 and 1 words.
uint32_t Word(const uint8_t* tile, int bits, int lane, int word) {
  int first = 0;
  for (const int chunk : {4, 4, 2, 1}) {
    if (first + chunk > bits) continue;
    if (word < first + chunk) {
      return Number<uint32_t>(tile + 4 * (first * kTileLanes + lane * chunk + word - first));
    }
    first += chunk;
  }
  return 0;
}

int Code(const DeviceMatrix& w, int64_t row, int64_t col) {
  const uint8_t* const tile =
      w.codes + row / 16 * w.tile_bytes + col / kTileCols * TileBytes(w.spec.bits);
  std::vector<uint32_t> words(TileBytes(w.spec.bits) / 4);
  for (int word = 0; word < w.spec.bits; ++word) {
    for (int lane = 0; lane < kTileLanes; ++lane)
      words[word * kTileLanes + lane] = Word(tile, w.spec.bits, lane, word);
  }
  return static_cast<int>(GetCode(words.data(), w.spec.bits, static_cast<int>(row % 16),
                                  static_cast<int>(col % kTileCols)));
}

struct GroupNumbers {
  float scale = 0, min = 0;
  int zero = 0;
};

float PlainScale(const ScaleView& view, const uint8_t* at, int64_t block) {
  switch (view.kind) {
    case ScaleKind::kF16:
      return F16ToF32(Number<uint16_t>(at));
    case ScaleKind::kBf16:
      return Bf16ToF32(Number<uint16_t>(at));
    case ScaleKind::kF32:
      return Number<float>(at);
    case ScaleKind::kE8m0:
      return E8m0ToF32(*at);
    case ScaleKind::kE4m3:
      return E4m3ToF32(*at) * view.factor;
    default: {
      const float product = view.table[*at] * view.second[block / kNestedBlock];
      return product + view.factor;
    }
  }
}

GroupNumbers Group(const DeviceMatrix& w, int64_t row, int64_t group) {
  const ScaleView& view = w.scale;
  GroupNumbers out;
  out.zero = view.zero_point;
  const int bytes = ScaleBytes(view.kind);
  if (view.shared_rows) {
    const int64_t block =
        view.block_rows == 0 ? 0 : (row + view.first_row_offset) / view.block_rows;
    out.scale = PlainScale(view, view.plane + (block * view.groups + group) * bytes, 0);
    return out;
  }
  const int slot = DeviceScaleSlot(static_cast<int>(row % 16));
  const uint8_t* const record =
      view.plane + row / 16 * view.tile_bytes + group / view.record_groups * view.record_bytes;
  if (!IsSuper(view.kind)) {
    out.scale =
        PlainScale(view, record + slot * bytes, view.first_block + row * view.row_blocks + group);
    const uint8_t* const beside = record + 16 * bytes;
    if (view.has_min) out.min = F16ToF32(Number<uint16_t>(beside + 2 * slot));
    if (view.has_zeros)
      out.zero = view.bits == 2 ? Number<uint32_t>(beside) >> 2 * slot & 3 : beside[slot];
    return out;
  }
  const uint8_t* const sub =
      record + (view.has_min ? 64 : 32) + group % view.record_groups * 16 * bytes;
  const float d = F16ToF32(Number<uint16_t>(record + 2 * slot));
  if (view.kind == ScaleKind::kSuperS8) {
    out.scale = d * static_cast<int8_t>(sub[slot]);
    return out;
  }
  const float dmin = F16ToF32(Number<uint16_t>(record + 32 + 2 * slot));
  const bool nibbles = view.kind == ScaleKind::kSuperU4Min;
  out.scale = d * (nibbles ? sub[slot] & 15 : sub[slot]);
  out.min = -(dmin * (nibbles ? sub[slot] >> 4 : sub[16 + slot]));
  return out;
}

float DenseValue(const DeviceMatrix& w, int64_t row, int64_t col) {
  const uint8_t* const tile = w.codes + row / 16 * w.tile_bytes;
  const int r = static_cast<int>(row % 16), c = static_cast<int>(col % 16);
  if (w.spec.type == PackedSpec::Type::kF32)
    return Number<float>(tile + 4 * (col / 16 * 256 + r * 16 + c));
  const int lane = 4 * (r % 8) + c % 8 / 2;
  const int place = c % 2 + r / 8 * 2 + c / 8 * 4;
  const auto bits = Number<uint16_t>(tile + 2 * (col / 16 * 256 + lane * 8 + place));
  return w.spec.type == PackedSpec::Type::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

std::vector<uint8_t> Blob(const PackedMatrix& w, const DeviceMatrixLayout& layout) {
  std::vector<uint8_t> blob(layout.bytes, 0xab);
  CopyInDeviceOrder(w, layout, 0, layout.bytes, blob.data());
  return blob;
}

// All rows of all tiles, the padding too.
void ExpectSame(const PackedSpec& spec, uint32_t seed, const std::string& name) {
  const PackedMatrix host = RandomMatrix(spec, seed);
  const auto layout = LayoutOnDevice(spec);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_LT(layout->bytes, host.bytes() + 512) << name;
  const std::vector<uint8_t> blob = Blob(host, *layout);
  const DeviceMatrix device = MatrixOnDevice(host, *layout, blob.data());
  EXPECT_EQ(device.rows(), host.rows());
  EXPECT_EQ(device.cols(), host.cols());
  if (spec.type != PackedSpec::Type::kInt) {
    for (int64_t row = 0; row < host.row_tiles() * 16; ++row) {
      for (int64_t col = 0; col < (host.cols() + 15) / 16 * 16; ++col)
        ASSERT_EQ(DenseValue(device, row, col), host.ValueAt(row, col)) << name << " row " << row;
    }
    return;
  }
  for (int64_t row = 0; row < host.row_tiles() * 16; ++row) {
    for (int64_t col = 0; col < (host.cols() + 63) / 64 * 64; ++col)
      ASSERT_EQ(Code(device, row, col), host.CodeAt(row, col)) << name << " row " << row;
    for (int64_t group = 0; group < host.groups(); ++group) {
      const bool padding = row >= host.rows();  // its scales are 0 whatever is stored
      if (padding && (spec.block_rows != 1 || spec.scale == ScaleKind::kNested)) continue;
      const GroupNumbers numbers = Group(device, row, group);
      ASSERT_EQ(padding ? 0 : numbers.scale, host.ScaleAt(row, group)) << name << " row " << row;
      ASSERT_EQ(numbers.min, host.MinAt(row, group)) << name << " row " << row;
      ASSERT_EQ(numbers.zero, host.ZeroAt(row, group)) << name << " row " << row;
    }
  }
}

TEST(DeviceMatrix, HoldsTheSameElementsInEverySpecOfTheTable) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<uint64_t, uint64_t>>{{1, 16}, {21, 150}, {33, 320}}) {
    for (const NamedSpec& named : AllSpecs(rows, cols))
      ExpectSame(named.spec, static_cast<uint32_t>(rows), named.name);
  }
}

TEST(DeviceMatrix, HoldsEveryKindWithEveryOffsetAndWidth) {
  for (int kind = 0; kind <= static_cast<int>(ScaleKind::kSuperU4Min); ++kind) {
    const auto scale = static_cast<ScaleKind>(kind);
    for (int bits = 2; bits <= 8; ++bits) {
      for (const ScaleOffset offset : {ScaleOffset::kNone, ScaleOffset::kMin, ScaleOffset::kZero}) {
        if (IsSuper(scale) && offset != ScaleOffset::kNone) continue;
        const PackedSpec spec = IntSpec(18, 75,
                                        {.bits = bits,
                                         .group_size = 16,
                                         .scale = scale,
                                         .offset = offset,
                                         .first_group_offset = 5});
        ExpectSame(spec, static_cast<uint32_t>(kind), spec.Describe());
      }
    }
  }
}

TEST(DeviceMatrix, AnyCutGivesTheSameBytes) {
  std::mt19937 rng(5);
  for (const NamedSpec& named : AllSpecs(35, 150)) {
    const PackedMatrix w = RandomMatrix(named.spec, 3);
    const auto layout = LayoutOnDevice(named.spec);
    ASSERT_TRUE(layout.ok()) << layout.status();
    const std::vector<uint8_t> whole = Blob(w, *layout);
    std::vector<uint8_t> pieces(layout->bytes, 0xcd);
    for (uint64_t at = 0; at < layout->bytes;) {
      const uint64_t end = std::min<uint64_t>(layout->bytes, at + 1 + rng() % 1500);
      CopyInDeviceOrder(w, *layout, at, end, pieces.data() + at);
      at = end;
    }
    EXPECT_EQ(pieces, whole) << named.name;
    uint8_t before = 0x5a;  // nothing is written for nothing
    CopyInDeviceOrder(w, *layout, 7, 7, &before);
    EXPECT_EQ(before, 0x5a);
  }
}

TEST(DeviceMatrix, PartsBeginAtMultiplesOf256Bytes) {
  for (const NamedSpec& named : AllSpecs(35, 150)) {
    const auto layout = LayoutOnDevice(named.spec);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->codes % 256, 0u) << named.name;
    EXPECT_EQ(layout->scales % 256, 0u) << named.name;
    EXPECT_EQ(layout->nested % 256, 0u) << named.name;
  }
}

// The words of the golden tile (tests/golden/p16x64s.json), where CUDA's chunks have them.
TEST(DeviceMatrix, ChunksHoldTheWordsOfTheGoldenTile) {
  std::ifstream file(GoldenFile("p16x64s.json"));
  ASSERT_TRUE(file) << "golden file missing";
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (int bits = 2; bits <= 8; ++bits) {
    RawMatrix raw = RandomRaw(IntSpec(16, 64, {.bits = bits}), 1);
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 64; ++col)
        raw.codes[row * 64 + col] =
            static_cast<uint8_t>((37 * row + 11 * col + 5 * row * col) & ((1 << bits) - 1));
    }
    const PackedMatrix w = Pack(raw);
    const std::vector<uint8_t> blob = Blob(w, *LayoutOnDevice(raw.spec));
    const auto& lanes = golden["widths"][std::to_string(bits)];
    ASSERT_EQ(lanes.size(), 32u);
    for (int lane = 0; lane < 32; ++lane) {
      for (int word = 0; word < bits; ++word) {
        EXPECT_EQ(Word(blob.data(), bits, lane, word),
                  std::stoul(lanes[lane][word].get<std::string>(), nullptr, 16))
            << "bits=" << bits << " lane=" << lane << " word=" << word;
      }
    }
  }
}

TEST(DeviceMatrix, EmptyMatricesTakeNoBytes) {
  for (const auto& [rows, cols] : {std::pair<uint64_t, uint64_t>{0, 64}, {16, 0}, {0, 0}}) {
    for (const PackedSpec& spec :
         {Q4Spec(rows, cols), PackedSpec{.rows = rows, .cols = cols},
          PackedSpec{.rows = rows, .cols = cols, .type = PackedSpec::Type::kBf16}}) {
      const auto layout = LayoutOnDevice(spec);
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_EQ(layout->bytes, 0u) << spec.Describe();
      CopyInDeviceOrder(RandomMatrix(spec, 1), *layout, 0, 0, nullptr);
    }
  }
}

TEST(DeviceMatrix, RefusesImpossibleSpecs) {
  EXPECT_EQ(LayoutOnDevice(IntSpec(16, 64, {.bits = 9})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitshard
