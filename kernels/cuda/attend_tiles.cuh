// Attention of 16 consecutive tokens (kTileQueries) of one sequence and one q head a warp, on
// tensor cores: scores and outputs are f16 products in f32, the softmax runs over tiles of 64
// positions. Not with the bits of attend.cuh: q, K and V are rounded to f16 (what is beyond its
// range, to its largest), p too.
#pragma once

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/kv_codes.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace bitshard::cuda {

constexpr int kTilePositions = 64;  // K and V in shared memory at a time
constexpr int kTileWarps = 4;
constexpr int kTileThreads = 32 * kTileWarps;

// Two values; the first in the low half.
__device__ __forceinline__ uint32_t PackHalves(float a, float b) {
  constexpr float kLargest = 65504.0f;
  // What is infinite becomes NaN, as in attend.cuh's sums; NaN passes all.
  a += a - a, b += b - b;
  a = a > kLargest ? kLargest : a < -kLargest ? -kLargest : a;
  b = b > kLargest ? kLargest : b < -kLargest ? -kLargest : b;
  return static_cast<uint32_t>(HalfBits(b)) << 16 | HalfBits(a);
}

// Rows are 16 bytes longer than they need: eight of them hit different banks.
template <int kHeadDim>
struct TileShared {
  static constexpr int kKRow = kTilePositions + 8, kVRow = kHeadDim + 8;
  uint16_t k[kHeadDim][kKRow];        // f16, [d][position]
  uint16_t v[kTilePositions][kVRow];  // [position][d]
  int head_of[kMaxQHeads];
  int group;
  // Whose V is not finite: a bit a position of the tile. Tiles take turns with the two, so that one
  // is cleared while the other is read.
  uint32_t bad[2][kTilePositions / 32];
};

// All threads: positions [base, base + 64) of a sequence into shared memory, as f16. Those outside
// [lowest, highest] are zeros: what lies there may be anything.
template <int kHeadDim>
class TileStage {
  static constexpr int kAtOnce = 8;

 public:
  __device__ __forceinline__ TileStage(const AttendArgs& args, int kv_head, int block_begin,
                                       int lowest, int highest, TileShared<kHeadDim>& shared)
      : args_(args),
        cache_(args.cache.data + int64_t{kv_head} * args.cache.head_bytes),
        blocks_(args.tokens.blocks + block_begin),
        lowest_(lowest),
        highest_(highest),
        shared_(shared) {}

  // One kernel for all types but f32: they differ here alone.
  __device__ __forceinline__ void Load(int base) {
    tile_ = base / kTilePositions;
    if (threadIdx.x < kTilePositions / 32) shared_.bad[1 - tile_ % 2][threadIdx.x] = 0;
    switch (args_.cache.type) {
      case KvType::kBf16:
        return LoadAs<KvElement<KvType::kBf16>>(base);
      case KvType::kF16:
        return LoadAs<KvElement<KvType::kF16>>(base);
      case KvType::kInt8:
        return LoadAs<KvElement<KvType::kInt8>>(base);
      case KvType::kFp8E4m3:
        return LoadAs<KvElement<KvType::kFp8E4m3>>(base);
      default:
        break;
    }
  }

 private:
  template <class Element>
  __device__ __forceinline__ void LoadAs(int base) const {
    constexpr int kRunsOfTile = kTilePositions / kAtOnce;
#pragma unroll 4
    for (int i = threadIdx.x; i < kHeadDim * kRunsOfTile; i += kTileThreads)
      LoadKeys<Element>(i / kRunsOfTile, base, i % kRunsOfTile * kAtOnce);
    constexpr int kRunsOfRow = kHeadDim / kAtOnce;
#pragma unroll 4
    for (int i = threadIdx.x; i < kTilePositions * kRunsOfRow; i += kTileThreads)
      LoadValues<Element>(base, i / kRunsOfRow, i % kRunsOfRow * kAtOnce);
  }

  __device__ __forceinline__ const uint8_t* BlockOf(int position) const {
    return cache_ + blocks_[position / kKvBlockTokens] * args_.cache.block_bytes;
  }
  __device__ __forceinline__ bool IsInside(int position) const {
    return position >= lowest_ && position <= highest_;
  }
  template <class Element>
  __device__ __forceinline__ float ScaleAt(const uint8_t* plane, int slot) const {
    if constexpr (!Element::kHasScales) return 1.0f;
    return reinterpret_cast<const float*>(plane + args_.cache.plane_bytes)[slot];
  }

  // One d, 8 positions from base + `first` on.
  template <class Element>
  __device__ __forceinline__ void LoadKeys(int d, int base, int first) const {
    using Stored = typename Element::Stored;
    float x[kAtOnce] = {};
    const int position = base + first, slot = position % kKvBlockTokens;
    if (position <= highest_ && position + kAtOnce > lowest_) {
      const uint8_t* const plane = BlockOf(position);
      const Stored* const from = reinterpret_cast<const Stored*>(plane) + d * kKvBlockTokens + slot;
      if (IsInside(position) && IsInside(position + kAtOnce - 1)) {
        LoadRun<Element>(from, x);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) x[i] *= ScaleAt<Element>(plane, slot + i);
      } else {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (IsInside(position + i))
            x[i] = Element::Value(from[i]) * ScaleAt<Element>(plane, slot + i);
        }
      }
    }
    StoreRun(&shared_.k[d][first], x);
  }

  // One position, 8 values from `d` on.
  template <class Element>
  __device__ __forceinline__ void LoadValues(int base, int at, int d) const {
    using Stored = typename Element::Stored;
    float x[kAtOnce] = {};
    const int position = base + at, slot = position % kKvBlockTokens;
    if (IsInside(position)) {
      const uint8_t* const plane = BlockOf(position) + args_.cache.v_offset;
      LoadRun<Element>(reinterpret_cast<const Stored*>(plane) + slot * kHeadDim + d, x);
      const float scale = ScaleAt<Element>(plane, slot);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        x[i] *= scale;
        if (x[i] - x[i] != 0) {  // NaN or infinite
          // Times a p of 0 it would spoil queries that do not see it.
          x[i] = 0;
          atomicOr(&shared_.bad[tile_ % 2][at / 32], 1u << at % 32);
        }
      }
    }
    StoreRun(&shared_.v[at][d], x);
  }

  // 8 elements in one load.
  template <class Element>
  static __device__ __forceinline__ void LoadRun(const typename Element::Stored* from,
                                                 float (&x)[kAtOnce]) {
    using Stored = typename Element::Stored;
    constexpr int kInWord = 4 / sizeof(Stored), kWords = kAtOnce / kInWord;
    uint32_t words[kWords];
    if constexpr (kWords == 4) {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      words[0] = v.x, words[1] = v.y;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] =
          Element::Value(static_cast<Stored>(words[i / kInWord] >> i % kInWord * (32 / kInWord)));
    }
  }

  static __device__ __forceinline__ void StoreRun(uint16_t* to, const float (&x)[kAtOnce]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(PackHalves(x[0], x[1]), PackHalves(x[2], x[3]),
                                               PackHalves(x[4], x[5]), PackHalves(x[6], x[7]));
  }

  const AttendArgs& args_;
  const uint8_t* const cache_;
  const uint32_t* const blocks_;
  const int lowest_, highest_;
  TileShared<kHeadDim>& shared_;
  int tile_ = 0;
};

// A warp's 16 queries. Lane 4 g + t has of rows g and g + 8 (i / 2) the columns 2 t, 2 t + 1 of
// each block of 8 (ptx/mma.cuh).
template <int kHeadDim>
class TileQueries {
 public:
  // Tokens from `token` on, at positions from `position` on, of one q head.
  __device__ __forceinline__ TileQueries(const AttendArgs& args, int token, int position, int head,
                                         const TileShared<kHeadDim>& shared)
      : args_(args),
        shared_(shared),
        token_(token),
        position_(position),
        head_(head),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    constexpr float kLog2E = 1.44269504f;
    const float scale = args.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const row =
          args.q + int64_t{token + Row(i)} * args.q_stride + head * kHeadDim + lane_ % 4 * 2;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        q_[step][i] = PackHalves(row[16 * step] * scale, row[16 * step + 1] * scale);
        q_[step][2 + i] = PackHalves(row[16 * step + 8] * scale, row[16 * step + 9] * scale);
      }
    }
  }
  __device__ __forceinline__ int first() const { return FirstVisible(position_, args_.window); }
  __device__ __forceinline__ int last() const { return position_ + kTileQueries - 1; }

  // What shared memory holds: positions [base, base + 64).
  __device__ __forceinline__ void Add(int base) {
    float s[kBlocks][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2) {
        uint32_t b[4];
        LdMatrixX4Trans(b, &shared_.k[16 * step + MatrixRow()][8 * block + MatrixColumn()]);
        Multiply(s[block], s[block + 1], q_[step], b);
      }
    }
    LookForBad(base);
    float rescale[2];
    Softmax(base, s, rescale);
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[block][i] *= rescale[i / 2];
    }
#pragma unroll
    for (int step = 0; step < kTilePositions / 16; ++step) {
      const float(&low)[4] = s[2 * step];
      const float(&high)[4] = s[2 * step + 1];
      const uint32_t p[4] = {PackHalves(low[0], low[1]), PackHalves(low[2], low[3]),
                             PackHalves(high[0], high[1]), PackHalves(high[2], high[3])};
#pragma unroll
      for (int block = 0; block < kHeadDim / 8; block += 2) {
        uint32_t b[4];
        LdMatrixX4Trans(b, &shared_.v[16 * step + MatrixRow()][8 * block + MatrixColumn()]);
        Multiply(out_[block], out_[block + 1], p, b);
      }
    }
  }

  __device__ __forceinline__ void Store() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sum_[i];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (sees_bad_[i]) sum = __uint_as_float(0x7fc00000u);
      float* const row = args_.out + int64_t{token_ + Row(i)} * args_.out_stride +
                         head_ * kHeadDim + lane_ % 4 * 2;
#pragma unroll
      for (int block = 0; block < kHeadDim / 8; ++block) {
        row[8 * block] = out_[block][2 * i] / sum;
        row[8 * block + 1] = out_[block][2 * i + 1] / sum;
      }
    }
  }

 private:
  static constexpr int kSteps = kHeadDim / 16, kBlocks = kTilePositions / 8;

  __device__ __forceinline__ int Row(int i) const { return lane_ / 4 + 8 * i; }
  // Of the four 8 x 8 matrices that a lane gives addresses for: two along k, then two along n.
  __device__ __forceinline__ int MatrixRow() const { return lane_ / 8 % 2 * 8 + lane_ % 8; }
  __device__ __forceinline__ int MatrixColumn() const { return lane_ / 16 * 8; }

  // Two neighbouring blocks of 8 columns.
  static __device__ __forceinline__ void Multiply(float (&d)[4], float (&next)[4],
                                                  const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
    MmaF16(d, a, first);
    MmaF16(next, a, second);
  }

  __device__ __forceinline__ void LookForBad(int base) {
#pragma unroll
    for (int word = 0; word < kTilePositions / 32; ++word) {
      const uint32_t bad = shared_.bad[base / kTilePositions % 2][word];
      if (bad == 0) continue;
      for (int i = 0; i < 2; ++i) {
        const int position = position_ + Row(i), at = base + 32 * word;
        for (int bit = 0; bit < 32; ++bit) {
          sees_bad_[i] = sees_bad_[i] || ((bad >> bit & 1u) != 0 && at + bit <= position &&
                                          at + bit >= FirstVisible(position, args_.window));
        }
      }
    }
  }

  // Scores, in units of log 2, to p.
  __device__ __forceinline__ void Softmax(int base, float (&s)[kBlocks][4], float (&rescale)[2]) {
    const float infinity = __uint_as_float(0x7f800000u);
    // All see all.
    const bool whole =
        FirstVisible(last(), args_.window) <= base && base + kTilePositions - 1 <= position_;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = position_ + Row(i);
      float largest = max_[i];
#pragma unroll
      for (int j = 0; j < 2 * kBlocks; ++j) {
        float& score = s[j / 2][2 * i + j % 2];
        const int at = base + j / 2 * 8 + lane_ % 4 * 2 + j % 2;
        if (!whole && (at > position || at < FirstVisible(position, args_.window)))
          score = -infinity;
        largest = fmaxf(largest, score);
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      // A row that has seen nothing yet.
      const float shift = largest == -infinity ? 0.0f : largest;
      rescale[i] = exp2f(max_[i] - shift);
      max_[i] = largest;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 2 * kBlocks; ++j) {
        float& p = s[j / 2][2 * i + j % 2];
        p = exp2f(p - shift);
        sum += p;
      }
      sum_[i] = sum_[i] * rescale[i] + sum;
    }
  }

  const AttendArgs& args_;
  const TileShared<kHeadDim>& shared_;
  const int token_, position_, head_, lane_;
  uint32_t q_[kSteps][4];
  float out_[kHeadDim / 8][4] = {};
  float max_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {};  // the lane's own columns
  bool sees_bad_[2] = {};
};

}  // namespace bitshard::cuda
