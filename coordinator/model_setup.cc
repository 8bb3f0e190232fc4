#include "coordinator/model_setup.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "coordinator/synthetic/synthetic_checkpoint.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "proto/version.h"

namespace bitshard {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const Checkpoint& checkpoint) {
  if (const auto* gguf = std::get_if<GgufVocab>(&checkpoint.tokenizer))
    return Tokenizer::FromGgufVocab(*gguf);
  const auto& files = std::get<HfTokenizerFiles>(checkpoint.tokenizer);
  if (files.tokenizer_json.empty()) {
    return absl::NotFoundError(
        "the folder has no tokenizer.json; copy it from where the weights come from");
  }
  return Tokenizer::FromTokenizerJson(files.tokenizer_json, files.tokenizer_config_json);
}

// What the operator knows the model by. A GGUF file's own name is free text of whoever made it:
// "Smollm2 135M 8k Lc100K".
std::string DefaultName(const Checkpoint& checkpoint) {
  if (checkpoint.container != Checkpoint::Container::kGguf) return checkpoint.name;
  return std::filesystem::path(checkpoint.path).stem();
}

std::string OrNone(std::string_view name) { return name.empty() ? "none" : std::string(name); }

absl::Status Named(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::vector<internal::RankPlan>> ModelSetup::Plans(const std::vector<double>& shares,
                                                                  uint32_t world) const {
  return ShardModel(graph, checkpoint.index,
                    shares.empty() ? std::vector<double>(world, 1.0) : shares);
}

absl::StatusOr<std::unique_ptr<ModelSetup>> SetUpModel(const CoordinatorOptions& options) {
  auto setup = std::make_unique<ModelSetup>();
  ASSIGN_OR_RETURN(setup->checkpoint, OpenModel(options.model));
  const Checkpoint& checkpoint = setup->checkpoint;

  absl::StatusOr<internal::ModelGraph> graph = BuildModelGraph(checkpoint.config, checkpoint.index);
  if (!graph.ok()) return Named(graph.status(), options.model);
  setup->graph = *std::move(graph);
  // In the plans too: workers size slots and rope tables by it. Scaling of rope has its own number.
  if (options.max_context > 0) {
    setup->graph.set_context_length(
        std::min<uint64_t>(setup->graph.context_length(), options.max_context));
  }
  const auto plans = setup->Plans(options.shares, options.workers);
  if (!plans.ok())
    return Named(plans.status(), absl::StrCat(options.model, " on ", options.workers, " workers"));

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = OpenTokenizer(checkpoint);
  if (!tokenizer.ok())
    return Named(tokenizer.status(), absl::StrCat(options.model, " (tokenizer)"));
  setup->tokenizer = *std::move(tokenizer);

  ServedModel& served = setup->served;
  if (!checkpoint.chat_template.empty()) {
    absl::StatusOr<ChatTemplate> parsed =
        ChatTemplate::Parse(checkpoint.chat_template, checkpoint.bos_token, checkpoint.eos_token);
    if (parsed.ok()) {
      setup->chat_template = *std::move(parsed);
      served.chat_template = &*setup->chat_template;
      setup->output_format.emplace(checkpoint.chat_template);
      served.output_format = &*setup->output_format;
      LogInfo("model: event=chat_template tool_calls={} reasoning={}",
              OrNone(setup->output_format->tool_call_name()),
              OrNone(setup->output_format->reasoning_name()));
    } else {
      // The model works without: only chat prompts are refused, with this reason.
      served.chat_refusal = Named(parsed.status(), "the model's chat template cannot be used");
      LogWarning("model: event=no_chat_template cause=\"{}\"",
                 std::string(parsed.status().message()));
    }
  }
  served.names = options.served_names.empty() ? std::vector<std::string>{DefaultName(checkpoint)}
                                              : options.served_names;
  served.fingerprint = absl::StrCat(
      checkpoint.model_digest().substr(0, 32), "-", options.activations_name, "-",
      options.kv_cache_name, options.deterministic ? "" : "-nondeterministic", "-", kBuildVersion);
  served.family = setup->graph.family();
  served.context_tokens =
      static_cast<uint32_t>(std::min<uint64_t>(setup->graph.context_length(), UINT32_MAX));
  served.vocabulary_size = static_cast<uint32_t>(setup->graph.vocab_size());
  served.embedding_size = static_cast<uint32_t>(checkpoint.config.hidden_size);
  std::set<std::string> formats;
  for (const internal::Weight& weight : setup->graph.weights()) formats.insert(weight.format());
  served.weight_formats.assign(formats.begin(), formats.end());
  served.kv_cache_type = options.kv_cache_name;
  served.activations = options.activations_name;
  served.tokenizer = setup->tokenizer.get();
  const std::vector<int32_t>& known = setup->tokenizer->eos_ids();
  for (const int32_t id : checkpoint.eos_ids) {
    if (!std::binary_search(known.begin(), known.end(), id)) served.end_tokens.push_back(id);
  }
  return setup;
}

}  // namespace bitshard
