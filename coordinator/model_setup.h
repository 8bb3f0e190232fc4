// From a path to everything the service needs to know of a model, before any worker is there. Reads
// headers, no weight.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/frontend/served_model.h"
#include "coordinator/options.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/output_parser.h"
#include "coordinator/text/tokenizer.h"
#include "proto/graph.pb.h"

namespace bitshard {

// Never moved once made: `served` points into it.
struct ModelSetup {
  Checkpoint checkpoint;
  internal::ModelGraph graph;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::optional<OutputFormat> output_format;  // of the template
  ServedModel served;

  // One plan a rank; empty `shares` = equal. Same input, same plans.
  absl::StatusOr<std::vector<internal::RankPlan>> Plans(const std::vector<double>& shares,
                                                        uint32_t world) const;
};

// Errors name the file and what to try. What would only fail later (a model that cannot be cut for
// so many workers) fails here too.
absl::StatusOr<std::unique_ptr<ModelSetup>> SetUpModel(const CoordinatorOptions& options);

}  // namespace bitshard
