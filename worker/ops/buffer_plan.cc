#include "worker/ops/buffer_plan.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

constexpr uint64_t kAlignment = 64;
// 1 TiB: beyond it a graph is wrong, whatever the machine.
constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 40;

// A value's memory and the groups of nodes, first to last, during which it must not be touched by
// others.
struct Life {
  uint64_t bytes = 0;
  int writer = -1;  // node
  int reads = 0;
  int first = -1;  // the group that writes it
  int last = -1;   // the last group that reads it, or `first`
};

absl::StatusOr<uint64_t> ValueBytes(const Value& value, bool is_logits, uint64_t max_step_tokens,
                                    uint64_t max_outputs) {
  const uint64_t rows = is_logits ? max_outputs : max_step_tokens;
  std::optional<uint64_t> bytes;
  switch (value.type()) {
    case Value::F32:
      bytes = CheckedProduct({rows, value.width(), sizeof(float)});
      break;
    case Value::RAW_BITS:
      bytes = CheckedProduct({rows, value.width(), sizeof(int64_t)});
      break;
    case Value::SEGMENT_SUM:
      // The poison counts lie behind the sums.
      bytes = CheckedAdd(value.width(), 1);
      if (bytes.has_value()) bytes = CheckedProduct({rows, *bytes, sizeof(int64_t)});
      break;
    default:
      return absl::InvalidArgumentError("graph: a value has no type");
  }
  if (!bytes.has_value() || *bytes > kMaxArenaBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph: a value of width ", value.width(), " is too large"));
  }
  return RoundUp(*bytes, kAlignment);
}

bool MayWriteOverFirstInput(const Node& node) {
  return node.has_rope() || node.has_gated_act() || node.has_residual_add();
}

class Planner {
 public:
  Planner(const internal::ModelGraph& graph, uint64_t max_step_tokens, uint64_t max_outputs,
          absl::Span<const NodeGroup> groups, bool sums_apart)
      : graph_(graph),
        max_step_tokens_(max_step_tokens),
        max_outputs_(max_outputs),
        sums_apart_(sums_apart),
        lives_(static_cast<size_t>(graph.values_size())),
        groups_(groups.begin(), groups.end()) {
    for (int n = 0; groups.empty() && n < graph.nodes_size(); ++n) groups_.push_back({.first = n});
    plan_.offsets.resize(lives_.size(), 0);
  }

  absl::StatusOr<BufferPlan> Plan() {
    RETURN_IF_ERROR(FindLives());
    std::vector<bool> alive(lives_.size(), false);
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      const NodeGroup& group = groups_[static_cast<size_t>(g)];
      for (int n = group.first; n < group.first + group.count; ++n) {
        const Node& node = graph_.nodes(n);
        for (uint32_t value : node.outputs()) {
          if (!PlaceOverInput(node, g, value)) Place(value, alive);
          alive[value] = true;
        }
      }
      for (size_t v = 0; v < lives_.size(); ++v) {
        if (lives_[v].last == g) alive[v] = false;
      }
    }
    return plan_;
  }

 private:
  absl::Status FindLives() {
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      const NodeGroup& group = groups_[static_cast<size_t>(g)];
      for (int n = group.first; n < group.first + group.count; ++n) {
        RETURN_IF_ERROR(FindLives(graph_.nodes(n), n, g));
      }
    }
    for (size_t v = 0; v < lives_.size(); ++v) {
      const Life& life = lives_[v];
      if (life.writer >= 0 && life.reads == 0 &&
          IsSumOverRanks(graph_.values(static_cast<int>(v)))) {
        return absl::InvalidArgumentError(absl::StrCat("graph: node ",
                                                       graph_.nodes(life.writer).name(),
                                                       " writes sums that no AllReduce reads"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status FindLives(const Node& node, int n, int group) {
    for (uint32_t value : node.inputs()) {
      if (value >= lives_.size() || lives_[value].writer < 0) {
        return absl::InvalidArgumentError(absl::StrCat("graph: node ", node.name(), " reads value ",
                                                       value, ", which no earlier node writes"));
      }
      RETURN_IF_ERROR(CheckReader(node, value));
      ++lives_[value].reads;
      lives_[value].last = group;
    }
    for (uint32_t value : node.outputs()) {
      if (value >= lives_.size() || lives_[value].writer >= 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("graph: node ", node.name(), " writes value ", value,
                         value >= lives_.size() ? ", which does not exist" : " a second time"));
      }
      ASSIGN_OR_RETURN(lives_[value].bytes,
                       ValueBytes(graph_.values(static_cast<int>(value)), node.has_lm_head(),
                                  max_step_tokens_, max_outputs_));
      lives_[value].writer = n;
      lives_[value].first = lives_[value].last = group;
    }
    return absl::OkStatus();
  }

  // What the value's rows and memory allow; its readers so far are up to `last`.
  absl::Status CheckReader(const Node& node, uint32_t value) const {
    if (node.op_case() == Node::OP_NOT_SET) return absl::OkStatus();  // its binding says what it is
    const Life& life = lives_[value];
    if (graph_.nodes(life.writer).has_lm_head() && !node.has_sample()) {
      return absl::InvalidArgumentError(
          absl::StrCat("graph: node ", node.name(), " reads value ", value,
                       ", logits of the sampled tokens alone; only Sample may"));
    }
    if (!IsSumOverRanks(graph_.values(static_cast<int>(value)))) return absl::OkStatus();
    if (!node.has_all_reduce() || life.reads != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "graph: node ", node.name(), " reads value ", value, ", sums of this rank alone; ",
          node.has_all_reduce() ? "another AllReduce has changed them" : "only AllReduce may"));
    }
    return absl::OkStatus();
  }

  bool PlaceOverInput(const Node& node, int g, uint32_t value) {
    if (!MayWriteOverFirstInput(node) || node.inputs_size() == 0) return false;
    const uint32_t input = node.inputs(0);
    // Only when the input dies here and is not read elsewhere in the group.
    if (lives_[input].last != g || lives_[input].bytes < lives_[value].bytes) return false;
    int64_t reads = 0;
    const NodeGroup& group = groups_[static_cast<size_t>(g)];
    for (int n = group.first; n < group.first + group.count; ++n) {
      const auto& inputs = graph_.nodes(n).inputs();
      reads += std::count(inputs.begin(), inputs.end(), input);
    }
    if (reads != 1) return false;
    plan_.offsets[value] = plan_.offsets[input];
    lives_[value].bytes = lives_[input].bytes;
    return true;
  }

  bool InSumsArena(size_t value) const {
    return sums_apart_ && IsSumOverRanks(graph_.values(static_cast<int>(value)));
  }

  // First fit among the values that are alive; they are few.
  void Place(uint32_t value, const std::vector<bool>& alive) {
    struct Taken {
      uint64_t begin, end;
    };
    std::vector<Taken> taken;
    for (size_t v = 0; v < lives_.size(); ++v) {
      if (alive[v] && InSumsArena(v) == InSumsArena(value))
        taken.push_back({plan_.offsets[v], plan_.offsets[v] + lives_[v].bytes});
    }
    std::sort(taken.begin(), taken.end(),
              [](const Taken& a, const Taken& b) { return a.begin < b.begin; });
    uint64_t offset = 0;
    for (const Taken& other : taken) {
      if (offset + lives_[value].bytes <= other.begin) break;
      offset = std::max(offset, other.end);
    }
    plan_.offsets[value] = offset;
    uint64_t& bytes = InSumsArena(value) ? plan_.sums_bytes : plan_.arena_bytes;
    bytes = std::max(bytes, offset + lives_[value].bytes);
  }

  const internal::ModelGraph& graph_;
  const uint64_t max_step_tokens_, max_outputs_;
  const bool sums_apart_;
  std::vector<Life> lives_;
  std::vector<NodeGroup> groups_;
  BufferPlan plan_;
};

}  // namespace

bool IsSumOverRanks(const Value& value) {
  return value.type() == Value::SEGMENT_SUM || value.type() == Value::RAW_BITS;
}

absl::StatusOr<BufferPlan> PlanBuffers(const internal::ModelGraph& graph, uint64_t max_step_tokens,
                                       uint64_t max_outputs, absl::Span<const NodeGroup> groups,
                                       bool sums_apart) {
  return Planner(graph, max_step_tokens, max_outputs, groups, sums_apart).Plan();
}

}  // namespace bitshard
