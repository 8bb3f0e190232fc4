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
  const uint32_t code = static_cast<uint32_t>(eight >> (whole_col % 8 * 8)) & 0xffu;
  return l.source.centred ? SyntheticCentred(code, l.bits) : code;
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

// numbers[at], of 1, 2 or 4 bytes.
__device__ __forceinline__ void Store(uint8_t* numbers, int64_t at, int bytes, uint32_t value) {
  if (bytes == 4) {
    reinterpret_cast<uint32_t*>(numbers)[at] = value;
  } else if (bytes == 2) {
    reinterpret_cast<uint16_t*>(numbers)[at] = static_cast<uint16_t>(value);
  } else {
    numbers[at] = static_cast<uint8_t>(value);
  }
}

__device__ __forceinline__ SyntheticGroup GroupOf(const SyntheticScalesLaunch& l, int64_t row,
                                                  int64_t group) {
  return SyntheticGroupOf(l.source.key, l.source.row_begin + static_cast<uint64_t>(row),
                          static_cast<uint64_t>(group), l.bits);
}

// Of a place in a record: the inverse of DeviceScaleSlot.
__device__ __forceinline__ int RowOfSlot(int slot) { return slot / 2 + slot % 2 * 8; }

// A row's numbers in the record of a two-level kind: the sub-scale of one group, and with that of
// the first group those of the super-block.
__device__ __forceinline__ void StoreInSuperBlock(const SyntheticScalesLaunch& l, uint8_t* record,
                                                  int64_t row, int slot, int64_t group) {
  const bool has_min = l.kind != ScaleKind::kSuperS8;
  const int in_record = static_cast<int>(group % l.record_groups);
  if (in_record == 0) {
    uint32_t d = 0, dmin = 0;
    if (row < l.rows) {
      const uint32_t draw = GroupOf(l, row, (l.first_group + group) / l.record_groups).scale;
      d = SyntheticF16(draw, l.source.exponent);
      dmin = SyntheticF16(draw, l.source.min_exponent);
    }
    Store(record, slot, 2, d);
    if (has_min) Store(record, kTileRows + slot, 2, dmin);
  }
  uint32_t scale = 0, min = 0;
  if (row < l.rows && group < l.groups) {
    const SyntheticGroup numbers = GroupOf(l, row, l.first_group + group);
    scale = SyntheticScale(l.kind, numbers, 0);
    min = SyntheticSubMin(numbers);
  }
  uint8_t* const sub =
      record + (has_min ? 2 : 1) * kTileRows * 2 + in_record * kTileRows * ScaleBytes(l.kind);
  Store(sub, slot, 1, scale);
  if (l.kind == ScaleKind::kSuperU8Min) Store(sub, kTileRows + slot, 1, min);
}

// The zero points of a record.
__device__ __forceinline__ void StoreZero(const SyntheticScalesLaunch& l, uint8_t* zeros,
                                          int64_t tile, int slot, int64_t group) {
  const auto zero_of = [&](int of) {
    const int64_t row = tile * kTileRows + RowOfSlot(of);
    return row < l.rows ? GroupOf(l, row, l.first_group + group).zero : 0;
  };
  if (l.bits != 2) return Store(zeros, slot, 1, zero_of(slot));
  if (slot != 0) return;
  uint32_t packed = 0;
  for (int s = 0; s < kTileRows; ++s) packed |= zero_of(s) << (2 * s);
  Store(zeros, 0, 4, packed);
}

__global__ void __launch_bounds__(kThreads)
    SyntheticScalesKernel(const __grid_constant__ SyntheticScalesLaunch launch) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row_tiles = (launch.rows + kTileRows - 1) / kTileRows;
  const int64_t records = (launch.groups + launch.record_groups - 1) / launch.record_groups;
  const int64_t groups = records * launch.record_groups;
  const int64_t group = i / kTileRows % groups, tile = i / kTileRows / groups;
  if (tile >= row_tiles) return;
  const int slot = static_cast<int>(i % kTileRows);
  const int64_t row = tile * kTileRows + RowOfSlot(slot);
  uint8_t* const record =
      launch.out + tile * launch.tile_bytes + group / launch.record_groups * launch.record_bytes;
  if (IsSuper(launch.kind)) return StoreInSuperBlock(launch, record, row, slot, group);
  uint32_t scale = 0, min = 0;
  if (row < launch.rows) {
    const SyntheticGroup numbers = GroupOf(launch, row, launch.first_group + group);
    scale = SyntheticScale(launch.kind, numbers, launch.source.exponent);
    min = SyntheticMin(launch.kind, numbers, launch.source.min_exponent);
  }
  Store(record, slot, ScaleBytes(launch.kind), scale);
  uint8_t* const offsets = record + kTileRows * ScaleBytes(launch.kind);
  if (launch.offset == ScaleOffset::kMin) Store(offsets, slot, 2, min);
  if (launch.offset == ScaleOffset::kZero) StoreZero(launch, offsets, tile, slot, group);
}

__global__ void __launch_bounds__(kThreads)
    SyntheticSharedKernel(const __grid_constant__ SyntheticSharedLaunch launch) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= launch.row_blocks * launch.groups) return;
  const SyntheticGroup numbers = SyntheticGroupOf(
      launch.source.key, static_cast<uint64_t>(launch.first_row_block + i / launch.groups),
      static_cast<uint64_t>(launch.first_group + i % launch.groups), launch.bits);
  Store(launch.out, i, ScaleBytes(launch.kind),
        SyntheticScale(launch.kind, numbers, launch.source.exponent));
}

__global__ void __launch_bounds__(kThreads)
    SyntheticNestedKernel(const __grid_constant__ SyntheticNestedLaunch launch) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= kNestedBlock + launch.blocks) return;
  launch.out[i] =
      i < kNestedBlock
          ? SyntheticNestedTable(launch.source.key, static_cast<uint32_t>(i))
          : SyntheticNestedSecond(launch.source.key,
                                  static_cast<uint64_t>(launch.first_block + i - kNestedBlock),
                                  launch.source.exponent);
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
  const bool padding = row >= launch.rows || col >= launch.cols;
  const uint32_t draw = SyntheticDraw(four, whole_col);
  Store(launch.out, i, ScaleBytes(launch.kind),
        padding ? 0 : SyntheticFloat(launch.kind, draw, launch.source.exponent));
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
  const int64_t groups = TilesOf(launch.groups, launch.record_groups) * launch.record_groups;
  const int64_t numbers = TilesOf(launch.rows, kTileRows) * kTileRows * groups;
  if (numbers == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(TilesOf(numbers, kThreads));
  return LAUNCH_KERNEL(SyntheticScalesKernel, dim3(blocks), dim3(kThreads), 0, stream, launch);
}

cudaError_t LaunchSyntheticShared(const SyntheticSharedLaunch& launch, cudaStream_t stream) {
  const int64_t numbers = launch.row_blocks * launch.groups;
  if (numbers == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(TilesOf(numbers, kThreads));
  return LAUNCH_KERNEL(SyntheticSharedKernel, dim3(blocks), dim3(kThreads), 0, stream, launch);
}

cudaError_t LaunchSyntheticNested(const SyntheticNestedLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(TilesOf(kNestedBlock + launch.blocks, kThreads));
  return LAUNCH_KERNEL(SyntheticNestedKernel, dim3(blocks), dim3(kThreads), 0, stream, launch);
}

cudaError_t LaunchSyntheticValues(const SyntheticValuesLaunch& launch, cudaStream_t stream) {
  const int64_t values =
      TilesOf(launch.rows, kTileRows) * TilesOf(launch.cols, kRunCols) * kTileRows * kRunCols;
  if (values == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(TilesOf(values, kThreads));
  return LAUNCH_KERNEL(SyntheticValuesKernel, dim3(blocks), dim3(kThreads), 0, stream, launch);
}

}  // namespace bitshard::cuda
