// Anything as a config.json: the model's settings, and what it says of quantization.
#include <cstdint>
#include <string_view>

#include "coordinator/checkpoint/compressed_tensors.h"
#include "coordinator/checkpoint/hf_config.h"
#include "coordinator/checkpoint/quantization.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bitshard;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto config = ParseHfConfig(json, "fuzz");
  if (config.ok()) CHECK_LE(config->rope.rotary_dim, config->head_dim);
  const auto declaration = FindQuantization(json, "fuzz");
  if (!declaration.ok() || !declaration->has_value()) return 0;
  const auto settings = CompressedTensorsConfig::Parse(**declaration);
  if (!settings.ok()) return 0;
  for (const char* module : {"model.layers.1.self_attn.q_proj", "lm_head", "model.embed_tokens"}) {
    const auto match = settings->Find(module);
    if (!match.ok() || match->scheme == nullptr) continue;
    CHECK_GE(match->scheme->bits, 2);
    CHECK_LE(match->scheme->bits, 8);
  }
  return 0;
}
