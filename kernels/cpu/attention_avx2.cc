// Attention on AVX2: caches of every type, f32 sums, heads of whole runs of 16; see
// attention_body.inc.
#include "kernels/base/math.h"
#include "kernels/cpu/attention_kv_avx2.h"
#include "kernels/registry/attention_kernel.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2
#include "kernels/cpu/math_body.inc"
ISA_END

ISA_BEGIN_AVX2
#include "kernels/cpu/attention_append_body.inc"
#include "kernels/cpu/attention_body.inc"
ISA_END

std::string Refuses(const AttentionConfig& config) {
  if (config.layout.head_dim % 16 == 0) return "";
  return "heads of " + std::to_string(config.layout.head_dim) + " are no multiple of 16";
}

const RegisterKernel<AttentionKernel> kRegistered({.name = "cpu/attention_avx2",
                                                   .isa = Isa::kAvx2,
                                                   .cost = 50,
                                                   .refuses = &Refuses,
                                                   .run = &Run,
                                                   .fold = &Fold,
                                                   .append = &Append,
                                                   .rotate = &Rotate});

}  // namespace
}  // namespace bitshard
