// Attention by the definition in kernels/registry/attention.h: one query, one position, one element
// at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/float_types.h"
#include "kernels/base/math.h"
#include "kernels/registry/attention_codes.h"
#include "kernels/registry/attention_kernel.h"

namespace bitshard {
namespace {

template <typename T>
T Get(const uint8_t* from, int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Put(uint8_t* to, int64_t index, T value) {
  std::memcpy(to + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

float LoadElement(KvType type, const uint8_t* plane, int64_t index) {
  switch (type) {
    case KvType::kBf16:
      return Bf16ToF32(Get<uint16_t>(plane, index));
    case KvType::kF32:
      return Get<float>(plane, index);
    case KvType::kF16:
      return F16ToF32(Get<uint16_t>(plane, index));
    case KvType::kInt8:
      return DecodeInt8(plane[index]);
    case KvType::kFp8E4m3:
      return DecodeFp8(plane[index]);
  }
  return 0;
}

void StoreElement(KvType type, uint8_t* plane, int64_t index, float value, float scale) {
  switch (type) {
    case KvType::kBf16:
      return Put(plane, index, F32ToBf16(value));
    case KvType::kF32:
      return Put(plane, index, value);
    case KvType::kF16:
      return Put(plane, index, F32ToF16(value));
    case KvType::kInt8:
      return Put(plane, index, EncodeInt8(value, scale));
    case KvType::kFp8E4m3:
      return Put(plane, index, EncodeFp8(value, scale));
  }
}

int64_t PlaneBytes(KvType type, int head_dim) {
  return KvLayout{.type = type, .kv_heads = 1, .head_dim = head_dim}.plane_bytes();
}

// One query over its positions [begin, end) of one chunk.
void RunChunk(const AttentionTask& task, int query, int64_t begin, int64_t end, float* partial) {
  const int head_dim = task.head_dim;
  const bool scales = KvHasScales(task.type);
  const int64_t scale_offset = PlaneBytes(task.type, head_dim);
  float* p = task.scratch;
  float* out = partial + kAttentionPartialOut;
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t pos = begin; pos < end; ++pos) {
    const uint8_t* k = task.k + task.blocks[pos / kKvBlockTokens] * task.block_bytes;
    const int64_t slot = pos % kKvBlockTokens;
    float dot = 0;
    for (int d = 0; d < head_dim; ++d) {
      dot = std::fma(task.q[query][d],
                     LoadElement(task.type, k, int64_t{d} * kKvBlockTokens + slot), dot);
    }
    if (scales) dot = dot * Get<float>(k + scale_offset, slot);
    const float score = dot * task.scale;
    p[pos - begin] = score;
    max = score > max ? score : max;
  }
  float lanes[kKvBlockTokens] = {};
  std::fill(out, out + head_dim, 0.0f);
  for (int64_t pos = begin; pos < end; ++pos) {
    const uint8_t* v = task.v + task.blocks[pos / kKvBlockTokens] * task.block_bytes;
    const int64_t slot = pos % kKvBlockTokens;
    float weight = ExpF32(p[pos - begin] - max);
    lanes[slot] += weight;
    if (scales) weight = weight * Get<float>(v + scale_offset, slot);
    for (int d = 0; d < head_dim; ++d)
      out[d] = std::fma(weight, LoadElement(task.type, v, slot * head_dim + d), out[d]);
  }
  for (int half = kKvBlockTokens / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  }
  partial[0] = max;
  partial[1] = lanes[0];
}

// Adds the next chunk to what the chunks before it gave.
void AddChunk(int head_dim, const float* partial, float* total) {
  const float* chunk_out = partial + kAttentionPartialOut;
  float* out = total + kAttentionPartialOut;
  const float new_max = partial[0] > total[0] ? partial[0] : total[0];
  const float a = ExpF32(total[0] - new_max), b = ExpF32(partial[0] - new_max);
  total[1] = std::fma(total[1], a, partial[1] * b);
  for (int d = 0; d < head_dim; ++d) out[d] = std::fma(out[d], a, chunk_out[d] * b);
  total[0] = new_max;
}

void Finish(int head_dim, const float* total, float* out) {
  for (int d = 0; d < head_dim; ++d) out[d] = total[kAttentionPartialOut + d] / total[1];
}

void RunQuery(const AttentionTask& task, int query) {
  const int64_t first = task.first[query], last = task.last[query];
  const int64_t floats = AttentionPartialFloats(task.head_dim);
  float* const total = task.scratch + kKvChunkTokens;
  bool started = false;
  for (int64_t chunk = task.first_chunk; chunk <= task.last_chunk; ++chunk) {
    const int64_t begin = std::max(first, chunk * kKvChunkTokens);
    const int64_t end = std::min(last + 1, (chunk + 1) * kKvChunkTokens);
    if (begin >= end) continue;
    float* const partial =
        task.partials == nullptr
            ? total + (started ? floats : 0)
            : task.partials + ((chunk - task.partials_chunk) * task.queries + query) * floats;
    RunChunk(task, query, begin, end, partial);
    if (started && task.partials == nullptr) AddChunk(task.head_dim, partial, total);
    started = true;
  }
  if (task.partials == nullptr) Finish(task.head_dim, total, task.out[query]);
}

void Run(const AttentionTask& task) {
  for (int query = 0; query < task.queries; ++query) RunQuery(task, query);
}

void Fold(const AttentionTask& task) {
  const int64_t floats = AttentionPartialFloats(task.head_dim);
  for (int query = 0; query < task.queries; ++query) {
    const int64_t first = task.first[query] / kKvChunkTokens;
    const int64_t last = task.last[query] / kKvChunkTokens;
    const auto partial = [&](int64_t chunk) {
      return task.partials + ((chunk - task.partials_chunk) * task.queries + query) * floats;
    };
    float* const total = partial(first);
    for (int64_t chunk = first + 1; chunk <= last; ++chunk)
      AddChunk(task.head_dim, partial(chunk), total);
    Finish(task.head_dim, total, task.out[query]);
  }
}

void Append(const AttentionAppendTask& task) {
  float k_scale = 0, v_scale = 0;
  if (KvHasScales(task.type)) {
    const int64_t scale_offset = PlaneBytes(task.type, task.head_dim);
    k_scale = KvScale(task.type, task.k, task.head_dim);
    v_scale = KvScale(task.type, task.v, task.head_dim);
    Put(task.k_plane + scale_offset, task.slot, k_scale);
    Put(task.v_plane + scale_offset, task.slot, v_scale);
  }
  for (int64_t d = 0; d < task.head_dim; ++d) {
    StoreElement(task.type, task.k_plane, d * kKvBlockTokens + task.slot, task.k[d], k_scale);
    StoreElement(task.type, task.v_plane, int64_t{task.slot} * task.head_dim + d, task.v[d],
                 v_scale);
  }
}

void Rotate(const AttentionRotateTask& task) {
  const int half = task.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const int at = task.interleaved ? 2 * i : i, other = task.interleaved ? at + 1 : i + half;
    const float a = task.x[at], b = task.x[other];
    task.out[at] = a * task.cos[i] - b * task.sin[i];
    task.out[other] = b * task.cos[i] + a * task.sin[i];
  }
  std::copy(task.x + task.rotary_dim, task.x + task.head_dim, task.out + task.rotary_dim);
}

std::string RefusesNothing(const AttentionConfig&) { return ""; }

const RegisterKernel<AttentionKernel> kRegistered({.name = "reference/attention",
                                                   .isa = Isa::kScalar,
                                                   .cost = 1000,
                                                   .refuses = &RefusesNothing,
                                                   .run = &Run,
                                                   .fold = &Fold,
                                                   .append = &Append,
                                                   .rotate = &Rotate});

}  // namespace
}  // namespace bitshard
