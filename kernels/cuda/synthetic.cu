// Synthetic weights, made where they stay: one thread a word of codes, a scale, a value.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/synthetic.h"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 16, kTileCols = 64, kRunCols = 16, kLanes = 32;

// Where bit `k` of a byte of word `word` of a P16x64-S tile (kernels/tensor/p16x64.h) belongs: bit
// `bit` of a code of rows 8 half .. 8 half + 7 and run `run` of 16 columns.
struct CodeBit {
  int half, run, bit;
};
__device__ __forceinline__ CodeBit CodeBitOf(int bits, int word, int k) {
  if (bits >= 5) {
    if (k < bits) return {word / 4, word % 4, k};
    const int at = word * (8 - bits) + k - bits;  // among the spare bits
    const int virtual_word = bits + at / bits;
    return {virtual_word / 4, virtual_word % 4, at % bits};
  }
  const int half = k / 4, in_half = k % 4;
  if (bits == 4) return {half, word, in_half};
  if (bits == 3) return in_half < 3 ? CodeBit{half, word, in_half} : CodeBit{half, 3, word};
  return {half, word + 2 * (in_half / 2), in_half % 2};
}

// The place in a tile's blob of 32 words a lane, [chunk of 4, 2 or 1][lane][words of the chunk].
struct TileWord {
  int lane, word;
};
__device__ __forceinline__ TileWord TileWordOf(int bits, int i) {
  int first = 0;
#pragma unroll
  for (int words = 4; words > 1; words /= 2) {
    for (; bits - first >= words; first += words) {
      if (i < words * kLanes) return {i / words, first + i % words};
      i -= words * kLanes;
    }
  }
  return {i, first};
}

__device__ __forceinline__ uint32_t CodeOf(const SyntheticCodesLaunch& l, int64_t row,
                                           int64_t col) {
  if (row >= l.rows) return 0;
  if (col >= l.cols) return l.zero;
  const uint64_t whole_col = l.source.col_begin + static_cast<uint64_t>(col);
  const uint64_t eight = SyntheticCodes(
      l.source.key, l.source.row_begin + static_cast<uint64_t>(row), whole_col / 8, l.bits);
  return static_cast<uint32_t>(eight >> (whole_col % 8 * 8)) & 0xffu;
}

__global__ void __launch_bounds__(kThreads)
    SyntheticCodesKernel(const __grid_constant__ SyntheticCodesLaunch launch) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t col_tiles = (launch.cols + kTileCols - 1) / kTileCols;
  const int64_t row_tiles = (launch.rows + kTileRows - 1) / kTileRows;
  const int tile_words = launch.bits * kLanes;
  const int64_t tile = i / tile_words;
  if (tile >= row_tiles * col_tiles) return;
  const TileWord place = TileWordOf(launch.bits, static_cast<int>(i % tile_words));
  const int64_t row = tile / col_tiles * kTileRows + place.lane / 4;
  const int64_t col = tile % col_tiles * kTileCols + place.lane % 4 * 2;
  uint32_t out = 0;
  for (int byte = 0; byte < 4; ++byte) {
    const int64_t byte_col = col + byte / 2 + byte % 2 * 8;
    int known = -1;  // whose code is at hand
    uint32_t code = 0;
    for (int k = 0; k < 8; ++k) {
      const CodeBit from = CodeBitOf(launch.bits, place.word, k);
      if (const int wanted = 4 * from.half + from.run; wanted != known) {
        known = wanted;
        code = CodeOf(launch, row + 8 * from.half, byte_col + from.run * kRunCols);
      }
      out |= (code >> from.bit & 1u) << (8 * byte + k);
    }
  }
  launch.out[i] = out;
}

__device__ __forceinline__ void StoreNumber(uint8_t* run, int64_t at, ScaleKind kind, uint32_t draw,
                                            int exponent, bool padding) {
  if (kind == ScaleKind::kF32) {
    reinterpret_cast<uint32_t*>(run)[at] = padding ? 0 : SyntheticF32(draw, exponent);
  } else {
    const uint16_t value =
        kind == ScaleKind::kF16 ? SyntheticF16(draw, exponent) : SyntheticBf16(draw, exponent);
    reinterpret_cast<uint16_t*>(run)[at] = padding ? uint16_t{0} : value;
  }
}

__device__ __forceinline__ SyntheticGroup GroupOf(const SyntheticScalesLaunch& l, int64_t row,
                                                  int64_t group) {
  return SyntheticGroupOf(l.source.key, l.source.row_begin + static_cast<uint64_t>(row),
                          static_cast<uint64_t>(l.first_group + group), l.bits);
}

// Of a place in a record: the inverse of DeviceScaleSlot.
__device__ __forceinline__ int RowOfSlot(int slot) { return slot / 2 + slot % 2 * 8; }

__global__ void __launch_bounds__(kThreads)
    SyntheticScalesKernel(const __grid_constant__ SyntheticScalesLaunch launch) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row_tiles = (launch.rows + kTileRows - 1) / kTileRows;
  const int64_t group = i / kTileRows % launch.groups, tile = i / kTileRows / launch.groups;
  if (tile >= row_tiles) return;
  const int slot = static_cast<int>(i % kTileRows);
  const int64_t row = tile * kTileRows + RowOfSlot(slot);
  uint8_t* const record = launch.out + tile * launch.tile_bytes + group * launch.record_bytes;
  const SyntheticGroup numbers = GroupOf(launch, row, group);
  const bool padding = row >= launch.rows;
  StoreNumber(record, slot, launch.kind, numbers.draw, launch.source.exponent, padding);
  if (!launch.has_zeros) return;
  uint8_t* const zeros = record + kTileRows * ScaleBytes(launch.kind);
  if (launch.bits != 2) {
    zeros[slot] = padding ? uint8_t{0} : static_cast<uint8_t>(numbers.zero);
  } else if (slot == 0) {
    uint32_t packed = 0;
    for (int s = 0; s < kTileRows; ++s) {
      const int64_t other = tile * kTileRows + RowOfSlot(s);
      if (other < launch.rows) packed |= GroupOf(launch, other, group).zero << (2 * s);
    }
    *reinterpret_cast<uint32_t*>(zeros) = packed;
  }
}

__global__ void __launch_bounds__(kThreads)
    SyntheticValuesKernel(const __grid_constant__ SyntheticValuesLaunch launch) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t runs = (launch.cols + kRunCols - 1) / kRunCols;
  const int64_t row_tiles = (launch.rows + kTileRows - 1) / kTileRows;
  constexpr int kValues = kTileRows * kRunCols;
  const int64_t run = i / kValues;
  if (run >= runs * row_tiles) return;
  const int in_run = static_cast<int>(i % kValues);
  int row_in_tile = in_run / kRunCols, col_in_run = in_run % kRunCols;
  if (launch.kind != ScaleKind::kF32) {  // the A operand of mma.m16n8k16
    const int lane = in_run / 8, e = in_run % 8;
    row_in_tile = lane / 4 + e / 2 % 2 * 8;
    col_in_run = lane % 4 * 2 + e % 2 + e / 4 * 8;
  }
  const int64_t row = run / runs * kTileRows + row_in_tile;
  const int64_t col = run % runs * kRunCols + col_in_run;
  const uint64_t whole_col = launch.source.col_begin + static_cast<uint64_t>(col);
  const uint64_t four = SyntheticBits(
      launch.source.key, launch.source.row_begin + static_cast<uint64_t>(row), whole_col / 4);
  const uint32_t draw = SyntheticDraw(four, whole_col);
  StoreNumber(launch.out, i, launch.kind, draw, launch.source.exponent,
              row >= launch.rows || col >= launch.cols);
}

int64_t TilesOf(int64_t count, int64_t each) { return (count + each - 1) / each; }

}  // namespace

cudaError_t LaunchSyntheticCodes(const SyntheticCodesLaunch& launch, cudaStream_t stream) {
  const int64_t words =
      TilesOf(launch.rows, kTileRows) * TilesOf(launch.cols, kTileCols) * launch.bits * kLanes;
  if (words == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(TilesOf(words, kThreads));
  return LAUNCH_KERNEL(SyntheticCodesKernel, dim3(blocks), dim3(kThreads), 0, stream, launch);
}

cudaError_t LaunchSyntheticScales(const SyntheticScalesLaunch& launch, cudaStream_t stream) {
  const int64_t numbers = TilesOf(launch.rows, kTileRows) * kTileRows * launch.groups;
  if (numbers == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(TilesOf(numbers, kThreads));
  return LAUNCH_KERNEL(SyntheticScalesKernel, dim3(blocks), dim3(kThreads), 0, stream, launch);
}

cudaError_t LaunchSyntheticValues(const SyntheticValuesLaunch& launch, cudaStream_t stream) {
  const int64_t values =
      TilesOf(launch.rows, kTileRows) * TilesOf(launch.cols, kRunCols) * kTileRows * kRunCols;
  if (values == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(TilesOf(values, kThreads));
  return LAUNCH_KERNEL(SyntheticValuesKernel, dim3(blocks), dim3(kThreads), 0, stream, launch);
}

}  // namespace bitshard::cuda
