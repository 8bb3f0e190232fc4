#include "coordinator/synthetic/synthetic_model.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr absl::string_view kPrefix = "synthetic:";
constexpr uint32_t kMaxGroup = 1u << 20;
constexpr uint32_t kMaxShards = 1024;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status ParseOption(absl::string_view option, SyntheticModel& model) {
  const auto wrong = [option](const char* takes) {
    return absl::InvalidArgumentError(absl::StrCat("'", option, "': ", takes));
  };
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(option, absl::MaxSplits('=', 1));
  const absl::string_view value = parts.second;
  if (option == "asym") {
    model.symmetric = false;
  } else if (parts.first == "bits") {
    if (!absl::SimpleAtoi(value, &model.bits)) return wrong("takes 2 to 8, or 16");
  } else if (parts.first == "group") {
    if (!absl::SimpleAtoi(value, &model.group)) return wrong("takes a number of columns, or 0");
  } else if (parts.first == "format") {
    if (value.empty()) return wrong("takes the name of a format, q4_k for one");
    model.format = std::string(value);
  } else if (parts.first == "seed") {
    if (!absl::SimpleAtoi(value, &model.seed)) return wrong("takes a number from 0 on");
  } else if (parts.first == "shard") {
    return ParseShard({value.data(), value.size()}, model);
  } else {
    return wrong("known are bits=, group=, asym, format=, shard=I/N and seed=");
  }
  return absl::OkStatus();
}

}  // namespace

std::string SyntheticModel::Describe() const {
  std::string text = "synthetic weights";
  if (quantizes()) {
    absl::StrAppend(&text, " of ", bits, " bits, ",
                    group == 0 ? "a scale a row" : absl::StrCat("groups of ", group),
                    symmetric ? "" : ", with zero points");
  } else if (!format.empty()) {
    absl::StrAppend(&text, " in format ", format);
  } else {
    absl::StrAppend(&text, bits == 0 ? ", quantized as the config says" : ", unquantized");
  }
  if (shards > 1) {
    absl::StrAppend(&text, "; rank ", shard, "'s share of ", shards,
                    " as a model of its own: nothing is summed with other ranks");
  }
  return text;
}

bool IsSyntheticModel(std::string_view model) { return absl::StartsWith(View(model), kPrefix); }

absl::Status ParseShard(std::string_view text, SyntheticModel& model, std::string_view prefix) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(View(text), absl::MaxSplits('/', 1));
  if (!absl::SimpleAtoi(parts.first, &model.shard) ||
      !absl::SimpleAtoi(parts.second, &model.shards)) {
    return absl::InvalidArgumentError(
        absl::StrCat(View(prefix), "shard=", View(text), ": takes I/N, rank I of N: 0/8"));
  }
  return absl::OkStatus();
}

absl::Status CheckSyntheticModel(const SyntheticModel& model, std::string_view prefix) {
  const absl::string_view p = View(prefix);
  const auto wrong = [p](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(p.empty() ? "synthetic weights: " : p, what...));
  };
  if (model.config.empty())
    return wrong("no config: give a config.json, its folder, or a name of a shape");
  if (model.bits != 0 && model.bits != SyntheticModel::kUnquantized &&
      (model.bits < 2 || model.bits > 8)) {
    return wrong("bits=", model.bits, "; 2 to 8, or 16 for unquantized ones");
  }
  if (!model.format.empty() &&
      (model.bits != 0 || model.group != SyntheticModel().group || !model.symmetric)) {
    return wrong("format=", model.format, " beside ", p,
                 "bits, a group or zero points; it says them all");
  }
  if (model.format.find_first_of(",:") != std::string::npos)
    return wrong("format=", model.format, ": no format is called so");
  if (model.group > kMaxGroup)
    return wrong("group=", model.group, "; at most ", kMaxGroup, ", or 0 for a scale a row");
  if (model.group != SyntheticModel().group && !model.quantizes())
    return wrong("group=", model.group, " without ", p,
                 "bits=2 to 8: the config says what its weights have");
  if (!model.symmetric && !model.quantizes())
    return wrong(p.empty() ? "zero points" : "zeros", " without ", p,
                 "bits=2 to 8: the config says what its weights have");
  if (model.shards < 1 || model.shards > kMaxShards || model.shard >= model.shards) {
    return wrong("shard=", model.shard, "/", model.shards, "; rank 0 to N-1 of N, at most ",
                 kMaxShards);
  }
  return absl::OkStatus();
}

absl::StatusOr<SyntheticModel> ParseSyntheticModel(std::string_view text) {
  SyntheticModel model;
  absl::string_view rest = View(text);
  rest.remove_prefix(kPrefix.size());
  const size_t colon = rest.find(':');
  const auto named = [&text](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(View(text), ": ", status.message()));
  };
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(View(text),
                     ": spell it synthetic:OPTIONS:CONFIG, without options "
                     "synthetic::CONFIG"));
  }
  for (absl::string_view option : absl::StrSplit(rest.substr(0, colon), ',', absl::SkipEmpty())) {
    if (const absl::Status status = ParseOption(option, model); !status.ok()) return named(status);
  }
  model.config = std::string(rest.substr(colon + 1));
  if (const absl::Status status = CheckSyntheticModel(model); !status.ok()) return named(status);
  return model;
}

std::string Spelled(const SyntheticModel& model) {
  std::string options;
  const auto add = [&options](const auto&... words) {
    absl::StrAppend(&options, options.empty() ? "" : ",", words...);
  };
  if (model.bits != 0) add("bits=", model.bits);
  if (model.quantizes()) add("group=", model.group);
  if (!model.symmetric) add("asym");
  if (!model.format.empty()) add("format=", model.format);
  if (model.shards > 1) add("shard=", model.shard, "/", model.shards);
  if (model.seed != 1) add("seed=", model.seed);
  return absl::StrCat(kPrefix, options, ":", model.config);
}

}  // namespace bitshard
