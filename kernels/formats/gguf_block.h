// What the quantized formats of GGUF share. A row is a run of blocks of 32 or 256 codes; a block
// has an f16 scale d, perhaps an f16 minimum, and in blocks of 256 sub-scales of its groups of 16
// or 32. They become the canonical form (kernels/tensor) number by number, nothing rounded or
// expanded.
//
// A format's file says what its block means twice: as values (DecodeBlock: the definition, element
// by element) and as codes and sub-scales (Unpack: eight at a time, for loading).
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "kernels/base/float_types.h"
#include "kernels/formats/format.h"

namespace bitshard {

struct GgufLayout {
  uint64_t block = 32;  // values
  uint64_t block_bytes = 0;
  int bits = 0;
  int zero_point = 0;
  int group_size = 32;
  ScaleKind scale = ScaleKind::kF16;
  uint64_t d_at = 0;                              // byte of d in a block
  std::optional<uint64_t> min_at = std::nullopt;  // and of the minimum
};

class GgufBlock : public BlockFormat {
 public:
  GgufBlock(std::string_view name, const GgufLayout& layout)
      : BlockFormat(name, layout.block, layout.block_bytes), layout_(layout) {}

  using BlockFormat::Canonical;
  using BlockFormat::Decode;
  using BlockFormat::ToCanonical;

  void Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
              float* out) const final;
  PackedSpec Canonical(uint64_t rows, const ColumnSlice& slice) const final;
  absl::Status ToCanonical(absl::Span<const uint8_t> bytes, uint64_t row_begin, uint64_t row_count,
                           const ColumnSlice& slice, PackedMatrixBuilder& builder) const final;

 protected:
  // Of one block: codes[block]; in two-level kinds scales[block / group_size] as GroupRow wants
  // them; sub_mins[the same], kSuperU8Min only.
  struct Numbers {
    uint8_t* codes = nullptr;
    uint8_t* scales = nullptr;
    uint8_t* sub_mins = nullptr;
  };

  // out[block] = the values.
  virtual void DecodeBlock(const uint8_t* block, float* out) const = 0;
  virtual void Unpack(const uint8_t* block, const Numbers& out) const = 0;

 private:
  const GgufLayout layout_;
};

inline uint16_t F16BitsAt(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

inline float F16At(const uint8_t* bytes) { return F16ToF32(F16BitsAt(bytes)); }

inline uint32_t U32At(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// Which bits of each byte make a part of a code, and at which bit of the code they go.
struct ByteBits {
  int from = 0;
  int count = 0;
  int to = 0;
};

// codes[i] |= those bits of bytes[i], for `count` bytes (a multiple of 8). The codes have them
// clear.
inline void AddBits(const uint8_t* bytes, int count, const ByteBits& bits, uint8_t* codes) {
  const uint64_t mask = 0x0101010101010101u * ((1u << bits.count) - 1);
  for (int i = 0; i < count; i += 8) {
    uint64_t in, out;
    std::memcpy(&in, bytes + i, 8);
    std::memcpy(&out, codes + i, 8);
    out |= ((in >> bits.from) & mask) << bits.to;
    std::memcpy(codes + i, &out, 8);
  }
}

// The same, where the codes have nothing else yet.
inline void SetBits(const uint8_t* bytes, int count, const ByteBits& bits, uint8_t* codes) {
  const uint64_t mask = 0x0101010101010101u * ((1u << bits.count) - 1);
  for (int i = 0; i < count; i += 8) {
    uint64_t in;
    std::memcpy(&in, bytes + i, 8);
    in = ((in >> bits.from) & mask) << bits.to;
    std::memcpy(codes + i, &in, 8);
  }
}

// codes[i] |= 16 when bit i of `high` is set, i < 32: the fifth bits of q5_0 and q5_1.
inline void AddFifthBits(uint32_t high, uint8_t* codes) {
  for (int i = 0; i < 32; i += 8) {
    // Bit k of the byte, alone in byte k, then moved to bit 4 there.
    uint64_t bits = (((high >> i) & 0xff) * 0x0101010101010101u) & 0x8040201008040201u;
    bits = ((bits + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
    uint64_t out;
    std::memcpy(&out, codes + i, 8);
    out |= bits << 4;
    std::memcpy(codes + i, &out, 8);
  }
}

// The 6-bit scale and minimum of group g < 8 in the 12 bytes of q4_k and q5_k.
inline int KScale(const uint8_t* packed, int g) {
  return g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | ((packed[g - 4] >> 6) << 4);
}
inline int KMin(const uint8_t* packed, int g) {
  return g < 4 ? packed[g + 4] & 63 : (packed[g + 4] >> 4) | ((packed[g] >> 6) << 4);
}

}  // namespace bitshard
