#include "kernels/tensor/p16x64.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace bitshard {
namespace {

static_assert(std::endian::native == std::endian::little);

struct Place {
  int lane, byte, r, j;
};

Place PlaceOf(int row, int col) {
  const int q = col % 16;
  const int t = (q % 8) / 2, h = q / 8, e = q % 2;
  return {4 * (row % 8) + t, h + 2 * e, row / 8, col / 16};
}

// Bits that lie together: `count` bits of the code from bit `from` on, at bit `shift` of byte m of
// word `word`.
struct Piece {
  int word, shift, from, count;
};

// The piece of the codes of rows 8 r .. 8 r + 7, columns 16 j .. 16 j + 15 that begins with bit
// `from` of the code.
constexpr Piece PieceOf(int bits, int r, int j, int from) {
  const int v = 4 * r + j;
  if (bits >= 5) {
    if (v < bits) return {v, 0, 0, bits};
    const int spare = 8 - bits;
    const int pos = (v - bits) * bits + from;
    return {pos / spare, bits + pos % spare, from, std::min(bits - from, spare - pos % spare)};
  }
  if (bits == 4) return {j, 4 * r, 0, 4};
  if (bits == 3) {
    if (j < 3) return {j, 4 * r, 0, 3};
    return {from, 4 * r + 3, from, 1};
  }
  return {j % 2, 4 * r + 2 * (j / 2), 0, 2};
}

template <typename Fn>
void ForEachPiece(int bits, const Place& place, Fn fn) {
  for (int from = 0; from < bits;) {
    const Piece piece = PieceOf(bits, place.r, place.j, from);
    fn(piece);
    from += piece.count;
  }
}

}  // namespace

void PutCode(uint32_t* tile, int bits, int row, int col, uint32_t code) {
  const Place place = PlaceOf(row, col);
  ForEachPiece(bits, place, [&](const Piece& piece) {
    const uint32_t part = (code >> piece.from) & ((1u << piece.count) - 1);
    tile[piece.word * kTileLanes + place.lane] |= part << (8 * place.byte + piece.shift);
  });
}

uint32_t GetCode(const uint32_t* tile, int bits, int row, int col) {
  const Place place = PlaceOf(row, col);
  uint32_t code = 0;
  ForEachPiece(bits, place, [&](const Piece& piece) {
    const uint32_t word = tile[piece.word * kTileLanes + place.lane];
    const uint32_t part = (word >> (8 * place.byte + piece.shift)) & ((1u << piece.count) - 1);
    code |= part << piece.from;
  });
  return code;
}

// The same for 16 codes at once: a row's part of a word is 16 bytes (4 lanes), with column c of a
// run at byte 2 (c % 8) + c / 8, and all of them have the same piece.
namespace {

using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Codes16 = uint64_t __attribute__((vector_size(16)));  // shifts must not leave a byte

constexpr int kWordBytes = kTileLanes * 4;

Codes16 LoadCodes(const void* bytes) {
  Codes16 codes;
  std::memcpy(&codes, bytes, sizeof(codes));
  return codes;
}

constexpr uint64_t EveryByte(int value) { return uint64_t{0x0101010101010101} * value; }

template <int kBits, int kHalf, int kRun, int kFrom = 0>
inline void PutPieces(Codes16 codes, Codes16* words) {
  constexpr Piece kPiece = PieceOf(kBits, kHalf, kRun, kFrom);
  Codes16 part = codes;
  if constexpr (kPiece.count < kBits)
    part = (codes >> kPiece.from) & EveryByte((1 << kPiece.count) - 1);
  words[kPiece.word] |= part << kPiece.shift;
  constexpr int kNext = kFrom + kPiece.count;
  if constexpr (kNext < kBits) PutPieces<kBits, kHalf, kRun, kNext>(codes, words);
}

Bytes16 EightBytes(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return reinterpret_cast<Bytes16>(Codes16{word, 0});
}

template <int kBits, int kHalf, int kRun>
inline void PutRun(const uint8_t* codes, Codes16* words) {
  const Bytes16 low = EightBytes(codes), high = EightBytes(codes + 8);
  const Bytes16 in =
      __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  PutPieces<kBits, kHalf, kRun>(reinterpret_cast<Codes16>(in), words);
}

template <int kBits, int kHalf>
void PutRowIn(uint32_t* tiles, int row, const uint8_t* codes, int64_t count) {
  auto* out = reinterpret_cast<uint8_t*>(tiles) + row % 8 * 16;
  for (int64_t tile = 0; tile < count; ++tile, codes += 64, out += TileBytes(kBits)) {
    Codes16 words[kBits] = {};
    PutRun<kBits, kHalf, 0>(codes, words);
    PutRun<kBits, kHalf, 1>(codes + 16, words);
    PutRun<kBits, kHalf, 2>(codes + 32, words);
    PutRun<kBits, kHalf, 3>(codes + 48, words);
#pragma GCC unroll 8
    for (int word = 0; word < kBits; ++word) {
      words[word] |= LoadCodes(out + word * kWordBytes);
      std::memcpy(out + word * kWordBytes, &words[word], sizeof(Codes16));
    }
  }
}

template <int kBits>
void PutRowOf(uint32_t* tiles, int row, const uint8_t* codes, int64_t count) {
  row < 8 ? PutRowIn<kBits, 0>(tiles, row, codes, count)
          : PutRowIn<kBits, 1>(tiles, row, codes, count);
}

template <int kBits, int kHalf, int kRun, int kFrom = 0>
inline Codes16 GetPieces(const uint8_t* words) {
  constexpr Piece kPiece = PieceOf(kBits, kHalf, kRun, kFrom);
  const Codes16 word = LoadCodes(words + kPiece.word * kWordBytes);
  const Codes16 part = (word >> kPiece.shift) & EveryByte((1 << kPiece.count) - 1);
  constexpr int kNext = kFrom + kPiece.count;
  if constexpr (kNext < kBits)
    return part << kPiece.from | GetPieces<kBits, kHalf, kRun, kNext>(words);
  else
    return part << kPiece.from;
}

// Bytes 0, 2, 4, 6 moved together.
uint64_t EvenBytes(uint64_t x) {
  x &= 0x00ff00ff00ff00ff;
  x = (x | x >> 8) & 0x0000ffff0000ffff;
  return (x | x >> 16) & 0xffffffff;
}

template <int kBits>
void GetRunOf(const uint32_t* tile, int row, int run, uint8_t* codes) {
  const auto* words = reinterpret_cast<const uint8_t*>(tile) + row % 8 * 16;
  constexpr Codes16 (*kGet[2][4])(const uint8_t*) = {
      {&GetPieces<kBits, 0, 0>, &GetPieces<kBits, 0, 1>, &GetPieces<kBits, 0, 2>,
       &GetPieces<kBits, 0, 3>},
      {&GetPieces<kBits, 1, 0>, &GetPieces<kBits, 1, 1>, &GetPieces<kBits, 1, 2>,
       &GetPieces<kBits, 1, 3>}};
  const Codes16 out = kGet[row / 8][run](words);
  const uint64_t low = EvenBytes(out[0]) | EvenBytes(out[1]) << 32;
  const uint64_t high = EvenBytes(out[0] >> 8) | EvenBytes(out[1] >> 8) << 32;
  std::memcpy(codes, &low, sizeof(low));
  std::memcpy(codes + 8, &high, sizeof(high));
}

// Of every width from 2 on.
constexpr decltype(&PutRowOf<2>) kPutRow[] = {&PutRowOf<2>, &PutRowOf<3>, &PutRowOf<4>,
                                              &PutRowOf<5>, &PutRowOf<6>, &PutRowOf<7>,
                                              &PutRowOf<8>};
constexpr decltype(&GetRunOf<2>) kGetRun[] = {&GetRunOf<2>, &GetRunOf<3>, &GetRunOf<4>,
                                              &GetRunOf<5>, &GetRunOf<6>, &GetRunOf<7>,
                                              &GetRunOf<8>};

}  // namespace

void PutRow(uint32_t* tiles, int bits, int row, const uint8_t* codes, int64_t count) {
  kPutRow[bits - 2](tiles, row, codes, count);
}

void GetRun(const uint32_t* tile, int bits, int row, int run, uint8_t codes[16]) {
  kGetRun[bits - 2](tile, row, run, codes);
}

}  // namespace bitshard
