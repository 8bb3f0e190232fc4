// compressed-tensors checkpoints (llm-compressor, vLLM): which scheme each module has, and the
// weights that its stored tensors make. Of the formats of that library "pack-quantized" can be
// loaded, integers of 2 to 8 bits; the others are refused by name.
// docs/formats/compressed_tensors.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/checkpoint/name_pattern.h"
#include "coordinator/checkpoint/quantization.h"
#include "coordinator/checkpoint/tensor_index.h"

namespace bitshard {

// How a group of the config quantizes its weights.
struct CompressedTensorsScheme {
  std::string group;   // its name in the config
  std::string format;  // "pack-quantized"; "dense": not quantized
  int bits = 0;
  uint64_t group_columns = 0;  // columns of a scale group; 0 = one scale a row
  bool symmetric = true;
};

class CompressedTensorsConfig {
 public:
  // INVALID_ARGUMENT for settings that contradict themselves; UNIMPLEMENTED, with the reason, for
  // other formats, sparsity, transforms at run time, dynamic weights.
  static absl::StatusOr<CompressedTensorsConfig> Parse(const QuantizationDeclaration& declaration);

  const std::string& where() const { return where_; }
  // "initialized", "calibration", "frozen": the weights are still floats.
  const std::string& status() const { return status_; }

  struct Match {
    const CompressedTensorsScheme* scheme = nullptr;  // null: the module is not quantized
    std::string target;                               // the name or pattern that decided
  };

  // `module`: the tensors' names without their last component. Ignored modules and those that no
  // target names have no scheme. A target matches the module's name, with and without the prefixes
  // that exporters add or leave out, the fused name of its layer ("qkv_proj"), or its class. Exact
  // names win over patterns, patterns over classes; among these the module's own name wins over
  // others, and then the config's order decides.
  absl::StatusOr<Match> Find(const std::string& module) const;

 private:
  // Names, patterns and classes, each with what it stands for; the first of equals wins.
  struct Matcher {
    std::map<std::string, size_t, std::less<>> names;
    std::vector<std::pair<NamePattern, size_t>> patterns;

    absl::Status Add(const std::string& text, size_t value, const std::string& where);
    struct Hit {
      size_t value = 0;
      std::string text;
    };
    absl::StatusOr<std::optional<Hit>> Find(const std::string& module) const;
  };

  CompressedTensorsConfig() = default;

  std::string where_;
  std::string status_;
  std::vector<CompressedTensorsScheme> schemes_;
  Matcher targets_;  // -> schemes_
  Matcher ignored_;
};

// Names that may stand for a module in a config, its own first: other prefixes, fused layers.
std::vector<std::string> NamesOfModule(const std::string& module);

// The index with one entry, <module>.weight, for the parts of each packed module. Reads the
// modules' weight_shape (16 bytes each) from the files.
absl::StatusOr<TensorIndex> AssembleCompressedTensors(const CompressedTensorsConfig& config,
                                                      const TensorIndex& stored);

}  // namespace bitshard
