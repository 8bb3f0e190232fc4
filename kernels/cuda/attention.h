// Kernels around the paged cache: angles, rotation and append, attention. DeviceKernels
// (kernels/registry/device_kernels.h) says what each computes, kernels/registry/attention.h with
// which bits: these are the CPU's. Pointers are the device's. Nothing is launched for m = 0.
#pragma once

#include <cstdint>
#include <driver_types.h>
#include <vector_types.h>

#include "kernels/tensor/kv_layout.h"

namespace bitshard::cuda {

// DeviceTokens.
struct TokenRows {
  const int32_t* position = nullptr;  // [m]; -1: padding
  const int32_t* row = nullptr;
  const int32_t* block_begin = nullptr;
  const uint32_t* blocks = nullptr;
  int64_t m = 0;
};

// One layer's cache; offsets as in KvLayout.
struct KvCache {
  KvType type = KvType::kBf16;
  int kv_heads = 0;
  int head_dim = 0;
  uint8_t* data = nullptr;
  int64_t block_bytes = 0;
  int64_t head_bytes = 0;
  int64_t plane_bytes = 0;  // from K (or V) to its scales
  int64_t v_offset = 0;     // from K to V
};
KvCache MakeKvCache(const KvLayout& layout, uint8_t* data);

struct AngleArgs {
  const double* inv_freq = nullptr;
  double attention_factor = 1;
  int rotary_dim = 0;  // even
  const int32_t* position = nullptr;
  int64_t m = 0;
  float2* cos_sin = nullptr;  // [m][rotary_dim / 2]
};
cudaError_t LaunchAngles(const AngleArgs& args, cudaStream_t stream);

inline constexpr int kMaxHeadDim = 256;  // of the cache; even
inline constexpr int kMaxQHeads = 256;

struct Rotation {
  int rotary_dim = 0;  // even; 0: nothing is rotated
  bool interleaved = false;
  const float2* cos_sin = nullptr;  // of LaunchAngles
};

struct RotateAppendArgs {
  KvCache cache;             // no kv heads: nothing is stored
  const float* k = nullptr;  // row r at + r * stride
  const float* v = nullptr;
  int64_t stride = 0;
  float* q = nullptr;  // rotated in place; row r at + r * q_stride
  int64_t q_stride = 0;
  int q_heads = 0;  // of cache.head_dim
  Rotation rotation;
  TokenRows tokens;
};
cudaError_t LaunchRotateAppend(const RotateAppendArgs& args, cudaStream_t stream);

// How the work is cut: blocks of threads for (tile of tokens, kv head, part); part p takes the
// chunks p, p + parts ... that its tile sees. With several parts a chunk's result goes to scratch,
// and a second kernel folds them.
struct AttendPlan {
  int tile_tokens = 1;
  int queries = 1;  // at once: 1, 4 or 8
  int parts = 1;
  int64_t chunks = 0;  // that one token sees at most
};
// The bits do not depend on it. window = 0: all. One part where `scratch_bytes` are too few.
AttendPlan PlanAttend(const KvLayout& layout, int q_heads, int64_t m, int64_t max_context,
                      int window, uint64_t scratch_bytes);
// What plans with up to `max_tokens` rows can use, but no more than `max_bytes`.
uint64_t AttendScratchBytes(const KvLayout& layout, int q_heads, int64_t max_tokens,
                            int64_t max_context, uint64_t max_bytes);

struct AttendArgs {
  KvCache cache;
  int q_heads = 0;
  const int32_t* kv_head_of_q = nullptr;
  float scale = 1;
  int window = 0;
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  TokenRows tokens;
  AttendPlan plan;
  void* scratch = nullptr;
  bool without_tiles = false;  // LaunchAttendTiles has what it can have
};
cudaError_t LaunchAttend(const AttendArgs& args, cudaStream_t stream);

// On tensor cores, with other bits: tokens [16 i, 16 i + 16) that follow each other in one
// sequence, and no others. Ignores plan and scratch.
bool ServesAttendTiles(const KvCache& cache, int64_t m);
cudaError_t LaunchAttendTiles(const AttendArgs& args, cudaStream_t stream);

}  // namespace bitshard::cuda
