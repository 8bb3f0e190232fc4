// ct_int2 .. ct_int8 (compressed-tensors "pack-quantized"): codes of 2 to 8 bits, a scale a group
// of columns or a row, perhaps a zero point a group. value = scale * (code - zero), in f32; a
// symmetric weight has zero = 2^(bits-1) everywhere.
//
// Parts, each of a weight [N, K] with G groups a row:
//   weight_packed      u32 [N, words(K)]: a row's codes
//   weight_scale       bf16, f16 or f32 [N, G]
//   weight_zero_point  u32 [words(N), G]: a column holds the zeros of one group of all rows
// "dense" packing is a bit string from the lowest bit of the first word on, so that a code may
// straddle two words; "padded" puts 32 / bits codes into each word and leaves the top bits unused.
// They differ for 3, 5, 6, 7 bits alone. docs/formats/compressed_tensors.md.
//
// Names: "ct_int4 group=32 scale=bf16 asym", "ct_int5 channel scale=f16 sym dense"; "stray=packed"
// or "stray=<bytes>" after sym: the file has zero points all the same, packed or of so many bytes
// each, and every one must say zero.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/float_types.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

constexpr uint64_t kWordBytes = 4;

uint32_t LoadWord(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// The lowest eight codes of a bit string, one to a byte: halved three times.
template <int kBits>
uint64_t SpreadEightCodes(uint64_t string) {
  constexpr uint64_t kFour = (uint64_t{1} << (4 * kBits)) - 1;
  constexpr uint64_t kTwo = ((uint64_t{1} << (2 * kBits)) - 1) * 0x0000000100000001u;
  constexpr uint64_t kOne = ((uint64_t{1} << kBits) - 1) * 0x0001000100010001u;
  string = (string & kFour) | ((string >> (4 * kBits)) & kFour) << 32;
  string = (string & kTwo) | ((string >> (2 * kBits)) & kTwo) << 16;
  return (string & kOne) | ((string >> kBits) & kOne) << 8;
}

// `count` times eight codes from the bytes at `from`. Reads 8 bytes each time.
template <int kBits>
void SpreadCodes(const uint8_t* from, uint64_t count, uint8_t* out) {
  for (; count > 0; --count, from += kBits, out += 8) {
    uint64_t string;
    std::memcpy(&string, from, sizeof(string));
    string = SpreadEightCodes<kBits>(string);
    std::memcpy(out, &string, sizeof(string));
  }
}

// All 32 / kBits codes of each of `count` words.
template <int kBits>
void SpreadWords(const uint8_t* from, uint64_t count, uint8_t* out) {
  for (; count > 0; --count, from += kWordBytes, out += 32 / kBits) {
    const uint32_t word = LoadWord(from);
    for (int i = 0; i < 32 / kBits; ++i)
      out[i] = static_cast<uint8_t>(word >> (i * kBits) & ((1u << kBits) - 1));
  }
}

// Of every width from 2 on.
constexpr decltype(&SpreadCodes<2>) kSpreadCodes[] = {
    &SpreadCodes<2>, &SpreadCodes<3>, &SpreadCodes<4>, &SpreadCodes<5>,
    &SpreadCodes<6>, &SpreadCodes<7>, &SpreadCodes<8>};
constexpr decltype(&SpreadWords<2>) kSpreadWords[] = {
    &SpreadWords<2>, &SpreadWords<3>, &SpreadWords<4>, &SpreadWords<5>,
    &SpreadWords<6>, &SpreadWords<7>, &SpreadWords<8>};

struct Run {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// How a run of codes lies in words.
struct Packing {
  int bits = 0;
  bool dense = true;

  uint64_t codes_per_word() const { return 32 / static_cast<uint64_t>(bits); }  // padded
  uint32_t mask() const { return (1u << bits) - 1; }

  // REQUIRES: codes below 2^60.
  uint64_t WordOf(uint64_t code) const {
    return dense ? code * bits / 32 : code / codes_per_word();
  }
  uint64_t Words(uint64_t codes) const {
    return dense ? CeilDiv(codes * bits, 32) : CeilDiv(codes, codes_per_word());
  }
  // The words that hold any of the codes; none for no codes.
  Run WordsOf(uint64_t begin, uint64_t end) const {
    return begin == end ? Run{WordOf(begin), WordOf(begin)} : Run{WordOf(begin), Words(end)};
  }

  // Code `i`; word(w) is the w-th word of the whole run.
  template <typename WordFn>
  uint8_t CodeAt(uint64_t i, const WordFn& word) const {
    const uint64_t w = WordOf(i);
    const int shift = static_cast<int>(dense ? i * bits % 32 : i % codes_per_word() * bits);
    uint32_t code = word(w) >> shift;
    if (shift + bits > 32) code |= word(w + 1) << (32 - shift);
    return static_cast<uint8_t>(code & mask());
  }
};

struct Parameters {
  enum class Zeros : uint8_t { kNone, kAsymmetric, kStrayPacked, kStrayBytes };

  int bits = 0;
  uint64_t group = 0;  // columns; 0 = the whole row
  ScaleKind scale = ScaleKind::kBf16;
  Zeros zeros = Zeros::kNone;
  uint64_t stray_bytes = 0;  // kStrayBytes
  bool dense = true;

  bool has_packing() const { return 32 % bits != 0; }

  std::string Name() const {
    std::string name = absl::StrCat("ct_int", bits, " ");
    group == 0 ? absl::StrAppend(&name, "channel") : absl::StrAppend(&name, "group=", group);
    absl::StrAppend(&name, " scale=",
                    scale == ScaleKind::kF32    ? "f32"
                    : scale == ScaleKind::kBf16 ? "bf16"
                                                : "f16");
    absl::StrAppend(&name, zeros == Zeros::kAsymmetric ? " asym" : " sym");
    if (zeros == Zeros::kStrayPacked) absl::StrAppend(&name, " stray=packed");
    if (zeros == Zeros::kStrayBytes) absl::StrAppend(&name, " stray=", stray_bytes);
    if (has_packing()) absl::StrAppend(&name, dense ? " dense" : " padded");
    return name;
  }

  // Takes every word that Name() writes, in any order; the caller compares the names.
  static std::optional<Parameters> Parse(std::string_view name);
};

bool ParseWord(std::string_view word, Parameters& out) {
  const std::string_view value = word.substr(word.find('=') + 1);
  const auto number = [value](uint64_t& to) {
    return absl::SimpleAtoi(absl::string_view(value.data(), value.size()), &to) && to > 0 &&
           to <= uint64_t{std::numeric_limits<int32_t>::max()};
  };
  if (word == "channel" || word == "sym" || word == "dense") return true;  // defaults
  if (word == "asym")
    out.zeros = Parameters::Zeros::kAsymmetric;
  else if (word == "stray=packed")
    out.zeros = Parameters::Zeros::kStrayPacked;
  else if (word == "padded")
    out.dense = false;
  else if (word == "scale=bf16")
    out.scale = ScaleKind::kBf16;
  else if (word == "scale=f16")
    out.scale = ScaleKind::kF16;
  else if (word == "scale=f32")
    out.scale = ScaleKind::kF32;
  else if (word.substr(0, 6) == "group=")
    return number(out.group);
  else if (word.substr(0, 6) == "stray=") {
    out.zeros = Parameters::Zeros::kStrayBytes;
    return number(out.stray_bytes) && out.stray_bytes <= 8;
  } else
    return false;
  return true;
}

std::optional<Parameters> Parameters::Parse(std::string_view name) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(name.data(), name.size()), ' ');
  Parameters out;
  if (words[0].size() != 7 || !absl::SimpleAtoi(words[0].substr(6), &out.bits)) return std::nullopt;
  if (out.bits < 2 || out.bits > 8) return std::nullopt;
  for (size_t i = 1; i < words.size(); ++i) {
    if (!ParseWord(words[i], out)) return std::nullopt;
  }
  return out;
}

class CtInt final : public WeightFormat {
 public:
  explicit CtInt(const Parameters& p)
      : WeightFormat(p.Name()), p_(p), packing_{.bits = p.bits, .dense = p.dense} {}

  size_t part_count() const override { return p_.zeros == Parameters::Zeros::kNone ? 2 : 3; }

  absl::StatusOr<PartShape> ShapeOfPart(size_t part, uint64_t rows, uint64_t cols) const override {
    constexpr uint64_t kMaxSide = std::numeric_limits<int32_t>::max();
    if (rows > kMaxSide || cols > kMaxSide || cols == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("[", rows, ", ", cols, "] is no size for ", name()));
    }
    if (p_.group != 0 && cols % p_.group != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          cols, " columns are no multiple of the group size ", p_.group, "; a group of ",
          std::gcd(cols, uint64_t{p_.group}), " would divide them, and 0 is one scale a row"));
    }
    const uint64_t groups = p_.group == 0 ? 1 : cols / p_.group;
    switch (part) {
      case 0:
        return PartShape{.rows = rows, .row_bytes = packing_.Words(cols) * kWordBytes};
      case 1:
        return PartShape{.rows = rows, .row_bytes = groups * scale_bytes()};
      default:
        CHECK(part == 2 && part_count() == 3);
        if (p_.zeros == Parameters::Zeros::kStrayBytes)
          return PartShape{.rows = rows, .row_bytes = groups * p_.stray_bytes};
        return PartShape{.rows = packing_.Words(rows), .row_bytes = groups * kWordBytes};
    }
  }

  PartSlice SliceOfPart(size_t part, uint64_t, const MatrixSlice& slice) const override {
    if (slice.empty()) return {};
    const Run groups = GroupsOf(slice);
    const auto of_groups = [&](const Run& rows, uint64_t bytes) {
      return PartSlice{rows.begin, rows.end, groups.begin * bytes, groups.end * bytes};
    };
    switch (part) {
      case 0: {
        const Run words = packing_.WordsOf(slice.col_begin, slice.col_end);
        return {slice.row_begin, slice.row_end, words.begin * kWordBytes, words.end * kWordBytes};
      }
      case 1:
        return of_groups({slice.row_begin, slice.row_end}, scale_bytes());
      default:
        if (p_.zeros == Parameters::Zeros::kStrayBytes)
          return of_groups({slice.row_begin, slice.row_end}, p_.stray_bytes);
        return of_groups(packing_.WordsOf(slice.row_begin, slice.row_end), kWordBytes);
    }
  }

  void Decode(PartBytes parts, uint64_t rows, uint64_t cols, float* out) const override {
    const MatrixSlice whole{0, rows, 0, cols};
    const uint64_t groups = GroupsOf(whole).end;
    std::vector<uint8_t> codes(cols), zeros(groups);
    for (uint64_t row = 0; row < rows; ++row) {
      GetCodes(parts[0], row, whole, codes.data());
      GetZeros(parts, row, whole, zeros.data());
      for (uint64_t k = 0; k < cols; ++k) {
        const uint64_t g = p_.group == 0 ? 0 : k / p_.group;
        const float scale = ScaleOf(parts[1].data() + (row * groups + g) * scale_bytes());
        *out++ = scale * static_cast<float>(codes[k] - zeros[g]);
      }
    }
  }

  PackedSpec Canonical(uint64_t cols, const MatrixSlice& slice) const override {
    const bool asymmetric = p_.zeros == Parameters::Zeros::kAsymmetric;
    const uint64_t group = p_.group == 0 ? cols : p_.group;
    return {.rows = slice.rows(),
            .cols = slice.cols(),
            .type = PackedSpec::Type::kInt,
            .bits = p_.bits,
            .zero_point = asymmetric ? 0 : middle(),
            .group_size = static_cast<int>(group),
            .scale = p_.scale,
            .offset = asymmetric ? ScaleOffset::kZero : ScaleOffset::kNone,
            .first_group_offset = static_cast<int>(slice.col_begin % group)};
  }

  absl::Status ToCanonical(PartBytes parts, uint64_t cols, const MatrixSlice& slice,
                           uint64_t first_row, PackedMatrixBuilder& builder) const override {
    CHECK(parts.size() == part_count() && slice.col_end <= cols);
    for (size_t part = 0; part < parts.size(); ++part)
      CHECK_EQ(parts[part].size(), SliceOfPart(part, cols, slice).bytes());
    const Run run = GroupsOf(slice);
    const uint64_t groups = run.end - run.begin;
    std::vector<uint8_t> codes(slice.cols()), zeros(groups);
    std::vector<uint8_t> scales(groups * scale_bytes() + alignof(float));
    for (uint64_t row = 0; row < slice.rows(); ++row) {
      const uint8_t* const stored = parts[1].data() + row * groups * scale_bytes();
      for (uint64_t g = 0; g < groups; ++g) {
        const float scale = ScaleOf(stored + g * scale_bytes());
        // Not below zero, finite; false for NaN.
        if (scale >= 0 && scale <= std::numeric_limits<float>::max()) continue;
        return absl::DataLossError(absl::StrCat(
            name(), ": the scale of row ", slice.row_begin + row, ", group ", run.begin + g, " is ",
            scale, "; must be finite and not negative; the file is damaged"));
      }
      std::memcpy(scales.data(), stored, groups * scale_bytes());
      GetCodes(parts[0], row, slice, codes.data());
      GetZeros(parts, row, slice, zeros.data());
      if (p_.zeros == Parameters::Zeros::kAsymmetric) {
        builder.SetIntRow(first_row + row, codes.data(),
                          {.scales = scales.data(), .zeros = zeros.data()});
        continue;
      }
      for (uint64_t g = 0; g < groups; ++g) {
        if (zeros[g] == middle()) continue;
        return absl::DataLossError(absl::StrCat(
            name(), ": the weight is declared symmetric, but row ", slice.row_begin + row,
            ", group ", run.begin + g, " has a zero point that is not zero"));
      }
      builder.SetIntRow(first_row + row, codes.data(), {.scales = scales.data()});
    }
    return absl::OkStatus();
  }

 private:
  int middle() const { return 1 << (p_.bits - 1); }
  uint64_t scale_bytes() const { return static_cast<uint64_t>(ScaleBytes(p_.scale)); }

  float ScaleOf(const uint8_t* stored) const {
    if (p_.scale == ScaleKind::kF32) {
      float scale;
      std::memcpy(&scale, stored, sizeof(scale));
      return scale;
    }
    uint16_t bits;
    std::memcpy(&bits, stored, sizeof(bits));
    return p_.scale == ScaleKind::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
  }

  Run GroupsOf(const MatrixSlice& slice) const {
    if (p_.group == 0) return {0, 1};
    return {slice.col_begin / p_.group, CeilDiv(slice.col_end, p_.group)};
  }

  // Row `row` of the slice. bytes: SliceOfPart(0). out[slice.cols()].
  void GetCodes(absl::Span<const uint8_t> bytes, uint64_t row, const MatrixSlice& slice,
                uint8_t* out) const {
    const Run words = packing_.WordsOf(slice.col_begin, slice.col_end);
    const uint8_t* const first = bytes.data() + row * (words.end - words.begin) * kWordBytes;
    const auto word = [&](uint64_t w) { return LoadWord(first + (w - words.begin) * kWordBytes); };
    uint64_t k = slice.col_begin;
    if (packing_.dense) {
      // Eight codes begin and end with a byte; loaded as eight bytes, which must exist.
      for (; k < slice.col_end && k % 8 != 0; ++k) *out++ = packing_.CodeAt(k, word);
      const uint8_t* next = first + k / 8 * p_.bits - words.begin * kWordBytes;
      const auto readable = static_cast<uint64_t>(bytes.data() + bytes.size() - next);
      if (readable >= 8 && k < slice.col_end) {
        const uint64_t count = std::min((slice.col_end - k) / 8, (readable - 8) / p_.bits + 1);
        kSpreadCodes[p_.bits - 2](next, count, out);
        k += 8 * count;
        out += 8 * count;
      }
    } else {
      const uint64_t each = packing_.codes_per_word();
      for (; k < slice.col_end && k % each != 0; ++k) *out++ = packing_.CodeAt(k, word);
      const uint64_t count = (slice.col_end - k) / each;
      kSpreadWords[p_.bits - 2](first + (k / each - words.begin) * kWordBytes, count, out);
      k += each * count;
      out += each * count;
    }
    for (; k < slice.col_end; ++k) *out++ = packing_.CodeAt(k, word);
  }

  // Zero codes of row `row` of the slice, one a group; a stray one of bytes gives the middle or not
  // the middle.
  void GetZeros(PartBytes parts, uint64_t row, const MatrixSlice& slice, uint8_t* out) const {
    const Run run = GroupsOf(slice);
    const uint64_t groups = run.end - run.begin;
    if (p_.zeros == Parameters::Zeros::kNone) {
      std::memset(out, middle(), groups);
      return;
    }
    const uint8_t* const bytes = parts[2].data();
    if (p_.zeros == Parameters::Zeros::kStrayBytes) {
      const uint8_t* stored = bytes + row * groups * p_.stray_bytes;
      for (uint64_t g = 0; g < groups; ++g) {
        bool is_zero = true;
        for (uint64_t i = 0; i < p_.stray_bytes; ++i) is_zero &= *stored++ == 0;
        out[g] = static_cast<uint8_t>(is_zero ? middle() : 0);
      }
      return;
    }
    const uint64_t first = packing_.WordOf(slice.row_begin);
    for (uint64_t g = 0; g < groups; ++g) {
      out[g] = packing_.CodeAt(slice.row_begin + row, [&](uint64_t w) {
        return LoadWord(bytes + ((w - first) * groups + g) * kWordBytes);
      });
    }
  }

  const Parameters p_;
  const Packing packing_;
};

std::unique_ptr<const WeightFormat> Make(std::string_view name) {
  const std::optional<Parameters> parameters = Parameters::Parse(name);
  if (!parameters || parameters->Name() != name) return nullptr;
  return std::make_unique<CtInt>(*parameters);
}

const RegisterFormatFamily kRegistered(
    {.prefix = "ct_int",
     .name_shape =
         "ct_int2..8 (compressed-tensors) with all its words, as in "
         "\"ct_int4 group=32 scale=f16 sym\" or \"ct_int3 channel scale=bf16 asym dense\"",
     .make = &Make});

}  // namespace
}  // namespace bitshard
