#include "coordinator/checkpoint/quantization.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "coordinator/checkpoint/compressed_tensors.h"
#include "kernels/base/status_macros.h"

namespace bitshard {

absl::StatusOr<std::optional<QuantizationDeclaration>> FindQuantization(
    std::string_view config_json, const std::string& where) {
  ASSIGN_OR_RETURN(const Json root, ParseJson(config_json, where));
  if (!root.is_object())
    return absl::InvalidArgumentError(absl::StrCat(where, " is not a JSON object"));
  using Path = std::vector<std::string>;
  std::optional<QuantizationDeclaration> found;
  for (const Path& path : {Path{"quantization_config"}, Path{"text_config", "quantization_config"},
                           Path{"compression_config"}}) {
    const Json* at = &root;
    for (const std::string& key : path) {
      at = at != nullptr && at->is_object() ? JsonFields(*at, where).Find(key.c_str()) : nullptr;
    }
    if (at == nullptr) continue;
    const std::string place =
        absl::StrCat(where, ": ", path.size() == 2 ? "text_config." : "", path.back());
    if (!at->is_object()) return absl::InvalidArgumentError(place + " is not an object");
    if (found) {
      if (found->settings == *at) continue;
      return absl::InvalidArgumentError(absl::StrCat(place, " says otherwise than ", found->where));
    }
    ASSIGN_OR_RETURN(const auto method, JsonFields(*at, place).String("quant_method"));
    Path groups = path;
    groups.push_back("config_groups");
    found = QuantizationDeclaration{.method = absl::AsciiStrToLower(method.value_or("unknown")),
                                    .settings = *at,
                                    .where = place,
                                    .groups = KeysInFileOrder(config_json, groups)};
  }
  return found;
}

absl::StatusOr<TensorIndex> ApplyQuantization(const QuantizationDeclaration& declaration,
                                              const TensorIndex& stored) {
  if (declaration.method == "compressed-tensors") {
    ASSIGN_OR_RETURN(const CompressedTensorsConfig config,
                     CompressedTensorsConfig::Parse(declaration));
    return AssembleCompressedTensors(config, stored);
  }
  return absl::UnimplementedError(
      absl::StrCat(declaration.where, ": quant_method '", declaration.method,
                   "' is not supported; supported are ", kSupportedQuantization));
}

}  // namespace bitshard
