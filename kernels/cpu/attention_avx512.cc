// Attention on AVX-512: bf16, f16 and f32 caches, f32 sums, heads of whole runs of 16; see
// attention_body.inc.
#include "kernels/base/math.h"
#include "kernels/cpu/vec16_avx512.h"
#include "kernels/registry/attention_kernel.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI
#include "kernels/cpu/math_body.inc"
ISA_END

ISA_BEGIN_AVX512VNNI
#include "kernels/cpu/attention_body.inc"
ISA_END

void Run(const AttentionTask& task) {
  switch (task.type) {
    case KvType::kBf16:
      return RunTask<KvType::kBf16>(task);
    case KvType::kF16:
      return RunTask<KvType::kF16>(task);
    case KvType::kF32:
      return RunTask<KvType::kF32>(task);
  }
}

std::string Refuses(const AttentionConfig& config) {
  if (config.layout.head_dim % 16 == 0) return "";
  return "heads of " + std::to_string(config.layout.head_dim) + " are no multiple of 16";
}

const RegisterKernel<AttentionKernel> kRegistered({.name = "cpu/attention_avx512",
                                                   .isa = Isa::kAvx512Vnni,
                                                   .cost = 10,
                                                   .refuses = &Refuses,
                                                   .run = &Run});

}  // namespace
}  // namespace bitshard
