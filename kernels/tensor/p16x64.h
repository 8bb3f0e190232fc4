// Where the bits of one code lie in a P16x64-S tile (16 rows x 64 columns, `bits` words of 32 bits
// for each of 32 lanes).
//
// Element (R, kk): r = R / 8, g = R % 8, j = kk / 16, q = kk % 16, t = (q % 8) / 2, h = q / 8, e =
// q % 2; lane 4g + t, byte m = h + 2e. Lane and byte say which rows and columns meet in a vector;
// the word depends on the width:
//   b = 8: word 4r + j. b = 5, 6, 7: virtual word V = 4r + j; V < b is stored, the others live in
//   the spare high bits of words 0..b-1. b = 4: word j, nibble r. b = 3: as 4 for j < 3, the bits
//   of j = 3 in the top bits of words 0, 1, 2. b = 2: word j % 2, bits 4r + 2 (j / 2).
#pragma once

#include <cstdint>

namespace bitshard {

inline constexpr int kTileLanes = 32;

// Words of a tile in CPU order: [word][lane]. REQUIRES: 2 <= bits <= 8, code < 2^bits, the code's
// bits are still zero.
void PutCode(uint32_t* tile, int bits, int row, int col, uint32_t code);

uint32_t GetCode(const uint32_t* tile, int bits, int row, int col);

// A whole row of `count` tiles that follow each other: codes[64 * count], in column order; the same
// as that many times PutCode, and fast.
void PutRow(uint32_t* tiles, int bits, int row, const uint8_t* codes, int64_t count);

// The 16 codes of columns [16 run, 16 run + 16) of a row, in column order. REQUIRES: 0 <= run < 4.
void GetRun(const uint32_t* tile, int bits, int row, int run, uint8_t codes[16]);

inline constexpr int64_t TileBytes(int bits) { return int64_t{128} * bits; }

}  // namespace bitshard
