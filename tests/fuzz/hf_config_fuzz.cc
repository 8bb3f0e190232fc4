// Anything as a config.json.
#include <cstdint>
#include <string_view>

#include "coordinator/checkpoint/hf_config.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = bitshard::ParseHfConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (config.ok()) CHECK_LE(config->rope.rotary_dim, config->head_dim);
  return 0;
}
