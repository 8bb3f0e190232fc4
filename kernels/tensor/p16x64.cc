#include "kernels/tensor/p16x64.h"

#include <bit>

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

// Bits that lie together: `count` bits of the code from bit `from` on, at bit `shift` of word
// `word`.
struct Piece {
  int word, shift, from, count;
};

// Calls fn for each piece of the code at this place.
template <typename Fn>
void ForEachPiece(int bits, const Place& p, Fn fn) {
  const int base = 8 * p.byte;
  const int v = 4 * p.r + p.j;
  if (bits >= 5) {
    if (v < bits || bits == 8) {
      fn(Piece{v, base, 0, bits});
      return;
    }
    const int spare = 8 - bits;
    for (int i = 0; i < bits; ++i) {
      const int pos = (v - bits) * bits + i;
      fn(Piece{pos / spare, base + bits + pos % spare, i, 1});
    }
  } else if (bits == 4) {
    fn(Piece{p.j, base + 4 * p.r, 0, 4});
  } else if (bits == 3) {
    if (p.j < 3) {
      fn(Piece{p.j, base + 4 * p.r, 0, 3});
    } else {
      for (int i = 0; i < 3; ++i) fn(Piece{i, base + 4 * p.r + 3, i, 1});
    }
  } else {
    fn(Piece{p.j % 2, base + 4 * p.r + 2 * (p.j / 2), 0, 2});
  }
}

}  // namespace

void PutCode(uint32_t* tile, int bits, int row, int col, uint32_t code) {
  const Place place = PlaceOf(row, col);
  ForEachPiece(bits, place, [&](const Piece& piece) {
    const uint32_t part = (code >> piece.from) & ((1u << piece.count) - 1);
    tile[piece.word * kTileLanes + place.lane] |= part << piece.shift;
  });
}

uint32_t GetCode(const uint32_t* tile, int bits, int row, int col) {
  const Place place = PlaceOf(row, col);
  uint32_t code = 0;
  ForEachPiece(bits, place, [&](const Piece& piece) {
    const uint32_t part =
        (tile[piece.word * kTileLanes + place.lane] >> piece.shift) & ((1u << piece.count) - 1);
    code |= part << piece.from;
  });
  return code;
}

namespace {

// The 16 bytes of a run of 16 columns of row `row`; for 4 bits they also hold the row 8 away.
// Column c is at 2 (c % 8) + c / 8 (little-endian words).
int64_t RunOffset(int bits, int row, int run) {
  const int word = bits == 8 ? 4 * (row / 8) + run : run;
  return int64_t{word} * kTileLanes * 4 + row % 8 * 16;
}

}  // namespace

void PutRun(uint32_t* tile, int bits, int row, int run, const uint8_t codes[16]) {
  if (bits != 4 && bits != 8) {
    for (int c = 0; c < 16; ++c) PutCode(tile, bits, row, 16 * run + c, codes[c]);
    return;
  }
  uint8_t* bytes = reinterpret_cast<uint8_t*>(tile) + RunOffset(bits, row, run);
  const int shift = bits == 4 ? row / 8 * 4 : 0;
  for (int c = 0; c < 8; ++c) {
    bytes[2 * c] |= static_cast<uint8_t>(codes[c] << shift);
    bytes[2 * c + 1] |= static_cast<uint8_t>(codes[c + 8] << shift);
  }
}

void GetRun(const uint32_t* tile, int bits, int row, int run, uint8_t codes[16]) {
  if (bits != 4 && bits != 8) {
    for (int c = 0; c < 16; ++c)
      codes[c] = static_cast<uint8_t>(GetCode(tile, bits, row, 16 * run + c));
    return;
  }
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(tile) + RunOffset(bits, row, run);
  const int shift = bits == 4 ? row / 8 * 4 : 0;
  const int mask = (1 << bits) - 1;
  for (int c = 0; c < 8; ++c) {
    codes[c] = static_cast<uint8_t>((bytes[2 * c] >> shift) & mask);
    codes[c + 8] = static_cast<uint8_t>((bytes[2 * c + 1] >> shift) & mask);
  }
}

}  // namespace bitshard
