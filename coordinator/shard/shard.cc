#include "coordinator/shard/shard.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

#include "coordinator/checkpoint/sha256.h"
#include "coordinator/shard/blocks.h"
#include "coordinator/shard/cut.h"
#include "coordinator/shard/load_plan.h"
#include "coordinator/shard/rank_graph.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr size_t kMaxWorld = 1024;

absl::Status CheckShares(const std::vector<double>& shares) {
  if (shares.empty() || shares.size() > kMaxWorld) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot shard over ", shares.size(), " workers; 1 to ", kMaxWorld));
  }
  double sum = 0;
  for (double share : shares) {
    if (!std::isfinite(share) || share <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a worker's share is ", share, "; shares must be above 0"));
    }
    sum += share;
  }
  if (!std::isfinite(sum)) return absl::InvalidArgumentError("the workers' shares are too large");
  return absl::OkStatus();
}

// Of files only the name counts, not the folder: a model that was moved is still the same, and so
// are loaded weights.
std::string PlanDigest(internal::RankPlan plan) {
  plan.clear_digest();
  for (internal::SourceFile& file : *plan.mutable_load()->mutable_files()) {
    file.set_path(file.path().substr(file.path().rfind('/') + 1));
  }
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    plan.SerializeToCodedStream(&coded);
  }
  Sha256 sha;
  sha.Add(bytes);
  return sha.HexDigest();
}

}  // namespace

absl::StatusOr<std::vector<internal::RankPlan>> ShardModel(const internal::ModelGraph& graph,
                                                           const TensorIndex& index,
                                                           const std::vector<double>& shares) {
  RETURN_IF_ERROR(CheckShares(shares));
  ASSIGN_OR_RETURN(const Blocks blocks, FindBlocks(graph));
  ASSIGN_OR_RETURN(const std::vector<RankCut> cuts, CutGraph(graph, blocks, shares));
  std::vector<internal::RankPlan> plans;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    internal::RankPlan plan;
    plan.set_rank(static_cast<uint32_t>(rank));
    plan.set_world(static_cast<uint32_t>(shares.size()));
    *plan.mutable_graph() = MakeRankGraph(graph, blocks, cuts[rank]);
    ASSIGN_OR_RETURN(*plan.mutable_load(), MakeLoadPlan(graph, index, cuts[rank]));
    plan.set_model_digest(index.model_digest());
    plan.set_digest(PlanDigest(plan));
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace bitshard
