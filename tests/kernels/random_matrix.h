// Random packed matrices and activations with fixed seeds, and the table of specs, for the sweeps
// over kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/float_types.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& v : out) v = normal(rng);
  return out;
}

// What an integer matrix is made of, as a source would have it; all row-major. What the spec does
// not ask for is empty.
struct RawMatrix {
  PackedSpec spec;
  std::vector<uint8_t> codes;                      // [rows, cols]
  std::vector<uint8_t> scales;                     // [rows or row blocks, groups] x RawScaleBytes
  std::vector<uint16_t> mins;                      // [rows, groups]
  std::vector<uint8_t> zeros, sub_mins;            // [rows, groups]
  std::vector<uint16_t> super_scales, super_mins;  // [rows, super blocks]
  std::vector<float> table, second;                // kNested
};

// kSuperU8Min has its minima apart.
inline size_t RawScaleBytes(ScaleKind kind) {
  return kind == ScaleKind::kSuperU8Min ? 1 : static_cast<size_t>(ScaleBytes(kind));
}

// Scales around 0.01; any code and any zero point.
inline RawMatrix RandomRaw(const PackedSpec& spec, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  RawMatrix raw;
  raw.spec = spec;
  const size_t groups = spec.groups(), supers = spec.super_blocks();
  raw.codes.resize(spec.rows * spec.cols);
  for (uint8_t& c : raw.codes) c = static_cast<uint8_t>(rng() % (1u << spec.bits));
  size_t at = 0;
  const auto put = [&](const auto& value) {
    std::memcpy(raw.scales.data() + at, &value, sizeof(value));
    at += sizeof(value);
  };
  const size_t scales = (spec.block_rows == 1 ? spec.rows : spec.row_blocks()) * groups;
  raw.scales.resize(scales * RawScaleBytes(spec.scale));
  for (size_t i = 0; i < scales; ++i) {
    switch (spec.scale) {
      case ScaleKind::kF16:
        put(F32ToF16(0.01f * normal(rng)));
        break;
      case ScaleKind::kBf16:
        put(F32ToBf16(0.01f * normal(rng)));
        break;
      case ScaleKind::kF32:
        put(0.01f * normal(rng));
        break;
      case ScaleKind::kE8m0:
        put(static_cast<uint8_t>(117 + rng() % 7));  // 2^-10 .. 2^-4
        break;
      case ScaleKind::kE4m3:
        put(static_cast<uint8_t>(rng() % 0x7f));  // not negative, no NaN
        break;
      case ScaleKind::kSuperU8Min:
        put(static_cast<uint8_t>(rng() % 64));
        raw.sub_mins.push_back(static_cast<uint8_t>(rng() % 64));
        break;
      default:
        put(static_cast<uint8_t>(rng()));
    }
  }
  const auto halves = [&](std::vector<uint16_t>& out, size_t count, float size) {
    out.resize(count);
    for (uint16_t& v : out) v = F32ToF16(size * normal(rng));
  };
  if (spec.offset == ScaleOffset::kMin) halves(raw.mins, spec.rows * groups, 0.05f);
  if (spec.offset == ScaleOffset::kZero) {
    raw.zeros.resize(spec.rows * groups);
    for (uint8_t& z : raw.zeros) z = static_cast<uint8_t>(rng() % (1u << spec.bits));
  }
  if (IsSuper(spec.scale)) halves(raw.super_scales, spec.rows * supers, 0.0005f);
  if (IsSuper(spec.scale) && spec.has_min()) halves(raw.super_mins, spec.rows * supers, 0.002f);
  if (spec.scale == ScaleKind::kNested) {
    raw.table = RandomFloats(kNestedBlock, seed + 1, 0.02f);
    const uint64_t last = spec.first_block + spec.rows * spec.source_row_groups;
    raw.second = RandomFloats(last / kNestedBlock - spec.first_block / kNestedBlock + 1, seed + 2);
  }
  return raw;
}

inline PackedMatrix Pack(const RawMatrix& raw) {
  const PackedSpec& spec = raw.spec;
  PackedMatrixBuilder builder(spec);
  const size_t groups = spec.groups(), supers = spec.super_blocks();
  const auto at = [](const auto& of, size_t i) { return of.empty() ? nullptr : of.data() + i; };
  const size_t scale_bytes = RawScaleBytes(spec.scale);
  for (size_t row = 0; row < spec.rows; ++row) {
    GroupRow of_row;
    if (spec.block_rows == 1) {
      of_row = {.scales = at(raw.scales, row * groups * scale_bytes),
                .mins = at(raw.mins, row * groups),
                .zeros = at(raw.zeros, row * groups),
                .sub_mins = at(raw.sub_mins, row * groups),
                .super_scales = at(raw.super_scales, row * supers),
                .super_mins = at(raw.super_mins, row * supers)};
    }
    builder.SetIntRow(row, raw.codes.data() + row * spec.cols, of_row);
  }
  if (spec.block_rows != 1) builder.SetSharedScales(raw.scales.data());
  if (spec.scale == ScaleKind::kNested) builder.SetNested(raw.table.data(), raw.second.data());
  return std::move(builder).Build();
}

// Columns [begin, end) as a rank has them that starts there.
inline RawMatrix CutColumns(const RawMatrix& whole, uint64_t begin, uint64_t end) {
  RawMatrix part = whole;
  PackedSpec& spec = part.spec;
  const uint64_t period = IsSuper(spec.scale) ? kSuperBlockCols : spec.group_size;
  const uint64_t at = spec.first_group_offset + begin;
  const uint64_t super = at / period, group = super * (period / spec.group_size);
  spec.cols = end - begin;
  spec.first_group_offset = static_cast<int>(at % period);
  spec.first_block += group;
  const auto cut = [](auto& of, uint64_t rows, uint64_t from_cols, uint64_t first, uint64_t cols) {
    if (of.empty()) return;
    const auto source = of;
    of.clear();
    for (uint64_t row = 0; row < rows; ++row) {
      const auto from = source.begin() + row * from_cols + first;
      of.insert(of.end(), from, from + cols);
    }
  };
  const PackedSpec& from = whole.spec;
  cut(part.codes, from.rows, from.cols, begin, spec.cols);
  const uint64_t bytes = RawScaleBytes(spec.scale), groups = spec.groups();
  cut(part.scales, spec.block_rows == 1 ? spec.rows : spec.row_blocks(), from.groups() * bytes,
      group * bytes, groups * bytes);
  cut(part.mins, spec.rows, from.groups(), group, groups);
  cut(part.zeros, spec.rows, from.groups(), group, groups);
  cut(part.sub_mins, spec.rows, from.groups(), group, groups);
  cut(part.super_scales, spec.rows, from.super_blocks(), super, spec.super_blocks());
  cut(part.super_mins, spec.rows, from.super_blocks(), super, spec.super_blocks());
  if (!part.second.empty()) {
    part.second.erase(part.second.begin(), part.second.begin() + spec.first_block / kNestedBlock -
                                               from.first_block / kNestedBlock);
  }
  return part;
}

// Rows [begin, end) likewise.
inline RawMatrix CutRows(const RawMatrix& whole, uint64_t begin, uint64_t end) {
  RawMatrix part = whole;
  PackedSpec& spec = part.spec;
  const PackedSpec& from = whole.spec;
  spec.rows = end - begin;
  const uint64_t at = from.first_row_offset + begin;
  if (spec.block_rows > 1) spec.first_row_offset = static_cast<int>(at % spec.block_rows);
  spec.first_block += begin * from.source_row_groups;
  const auto cut = [](auto& of, uint64_t first, uint64_t rows, uint64_t width) {
    if (of.empty()) return;
    const auto source = of;
    of.assign(source.begin() + first * width, source.begin() + (first + rows) * width);
  };
  const uint64_t groups = from.groups(), supers = from.super_blocks();
  cut(part.codes, begin, spec.rows, from.cols);
  const uint64_t first_scale_row =
      spec.block_rows == 1 ? begin : (spec.block_rows == 0 ? 0 : at / spec.block_rows);
  cut(part.scales, first_scale_row, spec.row_blocks(), groups * RawScaleBytes(spec.scale));
  cut(part.mins, begin, spec.rows, groups);
  cut(part.zeros, begin, spec.rows, groups);
  cut(part.sub_mins, begin, spec.rows, groups);
  cut(part.super_scales, begin, spec.rows, supers);
  cut(part.super_mins, begin, spec.rows, supers);
  if (!part.second.empty()) {
    part.second.erase(part.second.begin(), part.second.begin() + spec.first_block / kNestedBlock -
                                               from.first_block / kNestedBlock);
  }
  return part;
}

// Every row the way a builder gets it: integers as RandomRaw has them, or dense values around 1.
inline PackedMatrix RandomMatrix(const PackedSpec& spec, uint32_t seed) {
  if (spec.type == PackedSpec::Type::kInt) return Pack(RandomRaw(spec, seed));
  std::mt19937 rng(seed);
  PackedMatrixBuilder builder(spec);
  std::normal_distribution<float> normal;
  std::vector<float> f32(spec.cols);
  std::vector<uint16_t> half(spec.cols);
  for (uint64_t row = 0; row < spec.rows; ++row) {
    for (uint64_t k = 0; k < spec.cols; ++k) {
      f32[k] = normal(rng);
      half[k] = spec.type == PackedSpec::Type::kF16 ? F32ToF16(f32[k]) : F32ToBf16(f32[k]);
    }
    builder.SetDenseRow(row, spec.type == PackedSpec::Type::kF32
                                 ? static_cast<const void*>(f32.data())
                                 : half.data());
  }
  return std::move(builder).Build();
}

inline PackedSpec Q4Spec(uint64_t rows, uint64_t cols, int offset = 0) {
  return {.rows = rows,
          .cols = cols,
          .type = PackedSpec::Type::kInt,
          .bits = 4,
          .zero_point = 0,
          .group_size = 32,
          .offset = ScaleOffset::kMin,
          .first_group_offset = offset};
}

inline PackedSpec Q8Spec(uint64_t rows, uint64_t cols, int offset = 0) {
  return {.rows = rows,
          .cols = cols,
          .type = PackedSpec::Type::kInt,
          .bits = 8,
          .zero_point = 128,
          .group_size = 32,
          .first_group_offset = offset};
}

// What sets a spec apart from the others of the table; the rest is as the source's format wants it.
struct SpecForm {
  int bits = 4;
  int group_size = 32;  // 0: a scale a row
  ScaleKind scale = ScaleKind::kF16;
  ScaleOffset offset = ScaleOffset::kNone;
  int first_group_offset = 0;
  int block_rows = 1;
  int first_row_offset = 0;
};

inline PackedSpec IntSpec(uint64_t rows, uint64_t cols, const SpecForm& form) {
  PackedSpec spec{.rows = rows,
                  .cols = cols,
                  .type = PackedSpec::Type::kInt,
                  .bits = form.bits,
                  .zero_point = (1 << form.bits) / 2,
                  .group_size = form.group_size,
                  .scale = form.scale,
                  .offset = form.offset,
                  .first_group_offset = form.first_group_offset,
                  .block_rows = form.block_rows,
                  .first_row_offset = form.first_row_offset};
  if (spec.group_size == 0)
    spec.group_size = spec.first_group_offset + static_cast<int>(cols == 0 ? 1 : cols);
  if (spec.has_min() || spec.offset == ScaleOffset::kZero) spec.zero_point = 0;
  if (form.scale == ScaleKind::kE4m3) spec.scale_factor = 0.03125f;
  if (form.scale == ScaleKind::kNested) {
    spec.scale_factor = 0.05f;
    spec.source_row_groups = spec.groups() + 3;
    spec.first_block = 1000;
  }
  return spec;
}

struct NamedSpec {
  std::string name;  // Describe() and where the cuts are
  PackedSpec spec;
};

// Every dense type; every width with every kind of scale that a format gives it; cuts in the middle
// of groups, super-blocks and blocks of rows. Cuts are multiples of 16, as kernels want them.
inline std::vector<NamedSpec> AllSpecs(uint64_t rows, uint64_t cols) {
  using Kind = ScaleKind;
  constexpr ScaleOffset kNone = ScaleOffset::kNone, kMin = ScaleOffset::kMin,
                        kZero = ScaleOffset::kZero;
  std::vector<NamedSpec> all;
  const auto add = [&all](const PackedSpec& spec) {
    std::string name = spec.Describe();
    if (spec.first_group_offset != 0) name += " from=" + std::to_string(spec.first_group_offset);
    if (spec.first_row_offset != 0) name += " from row=" + std::to_string(spec.first_row_offset);
    all.push_back({std::move(name), spec});
  };
  for (const auto type : {PackedSpec::Type::kF32, PackedSpec::Type::kF16, PackedSpec::Type::kBf16})
    add({.rows = rows, .cols = cols, .type = type});
  std::vector<SpecForm> forms;
  for (int bits = 2; bits <= 8; ++bits) {
    forms.push_back({bits, 32, Kind::kF16, kNone});
    forms.push_back({bits, 32, Kind::kF16, kMin, 16});
    forms.push_back({bits, 32, Kind::kBf16, kZero, 16});
    forms.push_back({bits, 64, Kind::kBf16, kNone, 48});
    forms.push_back({bits, 128, Kind::kF32, kZero, 32});
    forms.push_back({bits, 0, Kind::kBf16, kNone});
    forms.push_back({bits, 0, Kind::kF32, kZero, 80});
  }
  for (const int from : {0, 16, 80, 240}) {
    forms.push_back({2, 16, Kind::kSuperU4Min, kNone, from});  // q2_k
    forms.push_back({3, 16, Kind::kSuperS8, kNone, from});     // q3_k
    forms.push_back({4, 32, Kind::kSuperU8Min, kNone, from});  // q4_k
    forms.push_back({5, 32, Kind::kSuperU8Min, kNone, from});  // q5_k
    forms.push_back({6, 16, Kind::kSuperS8, kNone, from});     // q6_k
  }
  forms.push_back({4, 32, Kind::kE8m0, kNone, 16});
  forms.push_back({4, 16, Kind::kE4m3, kNone});
  forms.push_back({4, 64, Kind::kNested, kNone});
  forms.push_back({8, 128, Kind::kF32, kNone, 0, 128});
  forms.push_back({8, 128, Kind::kBf16, kNone, 48, 128, 120});
  forms.push_back({8, 0, Kind::kF32, kNone, 0, 0});  // one for all
  for (const SpecForm& form : forms) add(IntSpec(rows, cols, form));
  return all;
}

}  // namespace bitshard
