// What a model folder says about the quantization of its weights, and the weights that the declared
// method makes of the stored tensors.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/json.h"
#include "coordinator/checkpoint/tensor_index.h"

namespace bitshard {

struct QuantizationDeclaration {
  std::string method;               // lower case: "compressed-tensors"
  Json settings;                    // an object
  std::string where;                // the file and the key, for messages
  std::vector<std::string> groups;  // the keys of "config_groups" in the order of the file
};

// quantization_config, text_config.quantization_config, compression_config of config.json. Nullopt:
// the model is not quantized. INVALID_ARGUMENT when two of them disagree.
absl::StatusOr<std::optional<QuantizationDeclaration>> FindQuantization(
    std::string_view config_json, const std::string& where);

// The index with the weights that the declared tensors make. UNIMPLEMENTED for a method or a form
// that we do not have (says which we do), INVALID_ARGUMENT when declaration and tensors disagree.
absl::StatusOr<TensorIndex> ApplyQuantization(const QuantizationDeclaration& declaration,
                                              const TensorIndex& stored);

// What of quantized checkpoints can be loaded, for messages.
inline constexpr char kSupportedQuantization[] =
    "unquantized BF16, F16 and F32 safetensors, compressed-tensors pack-quantized (integers of 2 "
    "to 8 bits), and GGUF files";

}  // namespace bitshard
