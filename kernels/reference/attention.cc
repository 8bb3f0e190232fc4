// Attention by the definition in kernels/registry/attention.h: one query, one position, one element
// at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/float_types.h"
#include "kernels/base/math.h"
#include "kernels/registry/attention_kernel.h"

namespace bitshard {
namespace {

float Load(KvType type, const uint8_t* plane, int64_t index) {
  if (type == KvType::kF32) {
    float value;
    std::memcpy(&value, plane + 4 * index, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, plane + 2 * index, 2);
  return type == KvType::kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

void RunQuery(const AttentionTask& task, int query) {
  const int head_dim = task.head_dim;
  float* p = task.scratch;
  float* chunk_out = p + kKvChunkTokens;
  float* total_out = chunk_out + head_dim;
  float total_max = 0, total_sum = 0;
  const int64_t first = task.first[query], last = task.last[query];
  for (int64_t chunk = first / kKvChunkTokens; chunk <= last / kKvChunkTokens; ++chunk) {
    const int64_t begin = std::max(first, chunk * kKvChunkTokens);
    const int64_t end = std::min(last + 1, (chunk + 1) * kKvChunkTokens);
    float max = -std::numeric_limits<float>::infinity();
    for (int64_t pos = begin; pos < end; ++pos) {
      const uint8_t* k = task.k + task.blocks[pos / kKvBlockTokens] * task.block_bytes;
      float dot = 0;
      for (int d = 0; d < head_dim; ++d) {
        dot = std::fma(task.q[query][d],
                       Load(task.type, k, int64_t{d} * kKvBlockTokens + pos % kKvBlockTokens), dot);
      }
      const float score = dot * task.scale;
      p[pos - begin] = score;
      max = score > max ? score : max;
    }
    float lanes[kKvBlockTokens] = {};
    std::fill(chunk_out, chunk_out + head_dim, 0.0f);
    for (int64_t pos = begin; pos < end; ++pos) {
      const uint8_t* v = task.v + task.blocks[pos / kKvBlockTokens] * task.block_bytes;
      const float weight = ExpF32(p[pos - begin] - max);
      lanes[pos % kKvBlockTokens] += weight;
      for (int d = 0; d < head_dim; ++d) {
        chunk_out[d] =
            std::fma(weight, Load(task.type, v, pos % kKvBlockTokens * head_dim + d), chunk_out[d]);
      }
    }
    for (int half = kKvBlockTokens / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
    }
    if (chunk == first / kKvChunkTokens) {
      total_max = max;
      total_sum = lanes[0];
      std::copy(chunk_out, chunk_out + head_dim, total_out);
      continue;
    }
    const float new_max = max > total_max ? max : total_max;
    const float a = ExpF32(total_max - new_max), b = ExpF32(max - new_max);
    total_sum = std::fma(total_sum, a, lanes[0] * b);
    for (int d = 0; d < head_dim; ++d) total_out[d] = std::fma(total_out[d], a, chunk_out[d] * b);
    total_max = new_max;
  }
  for (int d = 0; d < head_dim; ++d) task.out[query][d] = total_out[d] / total_sum;
}

void Run(const AttentionTask& task) {
  for (int query = 0; query < task.queries; ++query) RunQuery(task, query);
}

std::string RefusesNothing(const AttentionConfig&) { return ""; }

const RegisterKernel<AttentionKernel> kRegistered({.name = "reference/attention",
                                                   .isa = Isa::kScalar,
                                                   .cost = 1000,
                                                   .refuses = &RefusesNothing,
                                                   .run = &Run});

}  // namespace
}  // namespace bitshard
