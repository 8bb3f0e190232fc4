#include "coordinator/tools/synthetic_flags.h"

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace bitshard {

// Tells what is not given from what is empty, as of an unset variable of a shell.
struct GivenText {
  bool given = false;
  std::string text;
};

constexpr char kNotGiven[] = "(none)";

std::string AbslUnparseFlag(const GivenText& flag) { return flag.given ? flag.text : kNotGiven; }

bool AbslParseFlag(absl::string_view text, GivenText* flag, std::string*) {
  flag->given = text != kNotGiven;
  flag->text = flag->given ? std::string(text) : "";
  return true;
}

}  // namespace bitshard

ABSL_FLAG(bitshard::GivenText, synthetic, {},
          "a config.json, its folder, or the name of a public shape: a model with made weights");
ABSL_FLAG(int32_t, synthetic_bits, 0,
          "of the layers' matrices: 2 to 8, or 16 for unquantized; 0 = as the config says");
ABSL_FLAG(int32_t, synthetic_group, 128, "columns of a scale group; 0 = one scale a row");
ABSL_FLAG(bool, synthetic_zeros, false, "zero points beside the scales");
ABSL_FLAG(bitshard::GivenText, synthetic_format, {}, "of the layers' matrices, by its name: q4_k");
ABSL_FLAG(bitshard::GivenText, synthetic_shard, {}, "I/N: only what rank I of N would own");

namespace bitshard {

absl::StatusOr<std::optional<SyntheticModel>> SyntheticModelFromFlags() {
  for (const auto& [flag, value, what] :
       {std::tuple("--synthetic=", absl::GetFlag(FLAGS_synthetic),
                   "give a config.json, its folder, or a known shape such as llama-3.1-8b"),
        std::tuple("--synthetic-format=", absl::GetFlag(FLAGS_synthetic_format),
                   "give the name of a format, such as q4_k"),
        std::tuple("--synthetic-shard=", absl::GetFlag(FLAGS_synthetic_shard),
                   "give I/N, rank I of N, such as 0/8")}) {
    if (value.given && value.text.empty())
      return absl::InvalidArgumentError(absl::StrCat(flag, " is empty: ", what));
  }
  SyntheticModel model;
  model.config = absl::GetFlag(FLAGS_synthetic).text;
  model.bits = absl::GetFlag(FLAGS_synthetic_bits);
  const int32_t group = absl::GetFlag(FLAGS_synthetic_group);
  model.symmetric = !absl::GetFlag(FLAGS_synthetic_zeros);
  model.format = absl::GetFlag(FLAGS_synthetic_format).text;
  const std::string shard = absl::GetFlag(FLAGS_synthetic_shard).text;
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
  constexpr char kPrefix[] = "--synthetic-";
  if (!shard.empty()) RETURN_IF_ERROR(ParseShard(shard, model, kPrefix));
  RETURN_IF_ERROR(CheckSyntheticModel(model, kPrefix));
  if (model.format.empty()) return model;
  if (const absl::Status known = GetFormat(model.format).status(); !known.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--synthetic-format=", model.format, ": ", known.message()));
  }
  return model;
}

}  // namespace bitshard
