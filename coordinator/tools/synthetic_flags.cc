#include "coordinator/tools/synthetic_flags.h"

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

ABSL_FLAG(std::string, synthetic, "",
          "a config.json, its folder, or the name of a public shape: a model with made weights");
ABSL_FLAG(int32_t, synthetic_bits, 0,
          "of the layers' matrices: 2 to 8, or 16 for unquantized; 0 = as the config says");
ABSL_FLAG(int32_t, synthetic_group, 128, "columns of a scale group; 0 = one scale a row");
ABSL_FLAG(bool, synthetic_zeros, false, "zero points beside the scales");
ABSL_FLAG(std::string, synthetic_format, "", "of the layers' matrices, by its name: q4_k");
ABSL_FLAG(std::string, synthetic_shard, "", "I/N: only what rank I of N would own");

namespace bitshard {

absl::StatusOr<std::optional<SyntheticModel>> SyntheticModelFromFlags() {
  SyntheticModel model;
  model.config = absl::GetFlag(FLAGS_synthetic);
  model.bits = absl::GetFlag(FLAGS_synthetic_bits);
  const int32_t group = absl::GetFlag(FLAGS_synthetic_group);
  model.symmetric = !absl::GetFlag(FLAGS_synthetic_zeros);
  model.format = absl::GetFlag(FLAGS_synthetic_format);
  const std::string shard = absl::GetFlag(FLAGS_synthetic_shard);
  if (model.config.empty()) {
    const bool nothing =
        model.bits == 0 && group == 128 && model.symmetric && model.format.empty() && shard.empty();
    if (nothing) return std::nullopt;
    return absl::InvalidArgumentError(
        "--synthetic-bits, --synthetic-group, --synthetic-zeros, --synthetic-format and "
        "--synthetic-shard go with --synthetic=CONFIG");
  }
  if (group < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--synthetic-group=", group, ": a number of columns, or 0 for one scale a row"));
  }
  model.group = static_cast<uint32_t>(group);
  if (!shard.empty()) RETURN_IF_ERROR(ParseShard(shard, model));
  RETURN_IF_ERROR(CheckSyntheticModel(model));
  return model;
}

}  // namespace bitshard
