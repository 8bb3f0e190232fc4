#include "coordinator/shard/cut.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

using internal::Linear;
using internal::ModelGraph;

constexpr uint64_t kVocabUnitRows = 64;

enum class Axis { kRows, kCols };

// Fills RankCut by RankCut; every cut weight is cut once.
class Cutter {
 public:
  Cutter(const ModelGraph& graph, const std::vector<double>& shares)
      : graph_(graph), shares_(shares) {
    RankCut whole;
    for (const internal::Weight& weight : graph.weights()) {
      whole.weights.push_back({.rows = {0, weight.rows()}, .cols = {0, weight.cols()}});
    }
    ranks_.assign(shares.size(), whole);
    units_.assign(shares.size(), 0);
  }

  absl::Status CutVocabulary(const Blocks& blocks) {
    const uint32_t embed = graph_.nodes(blocks.embed).embed().weight();
    const uint32_t head = graph_.nodes(blocks.lm_head).lm_head().weight();
    const uint64_t rows = graph_.weights(static_cast<int>(embed)).rows();
    const std::vector<uint64_t> units = DealUnits(CeilDiv(rows, kVocabUnitRows), shares_);
    const std::vector<Run> runs = UnitRuns(units, kVocabUnitRows, rows);
    RETURN_IF_ERROR(Cut(embed, Axis::kRows, runs));
    if (head != embed) RETURN_IF_ERROR(Cut(head, Axis::kRows, runs));
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].vocab = runs[r];
    return absl::OkStatus();
  }

  absl::Status CutAttention(const AttentionBlock& block) {
    const internal::Attention& attention = graph_.nodes(block.attention).attention();
    const HeadDeal deal = DealHeads(attention);
    const uint64_t head_dim = attention.head_dim();
    std::vector<Run> q_rows, kv_rows;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Run &q = deal.q[r], &kv = deal.kv[r];
      units_[r] += q.size();
      ranks_[r].q_heads.push_back(q);
      ranks_[r].kv_heads.push_back(kv);
      q_rows.push_back({q.begin * head_dim, q.end * head_dim});
      kv_rows.push_back({kv.begin * head_dim, kv.end * head_dim});
    }
    RETURN_IF_ERROR(CutLinear(block.q_linear, Axis::kRows, q_rows));
    RETURN_IF_ERROR(CutLinear(block.k_linear, Axis::kRows, kv_rows));
    RETURN_IF_ERROR(CutLinear(block.v_linear, Axis::kRows, kv_rows));
    return CutLinear(block.o_linear, Axis::kCols, q_rows);
  }

  // `attention`: the blocks of the same layer, cut before; the MLP makes up for their unevenness.
  absl::Status CutMlp(const MlpBlock& block, const AttentionBlock* attention,
                      size_t attention_count) {
    const Linear& down = graph_.nodes(block.down_linear).linear();
    const uint64_t unit_cols = down.segment_cols(),
                   cols = graph_.weights(static_cast<int>(down.weight())).cols();
    std::vector<double> taken(ranks_.size(), 0.0);
    for (size_t i = 0; i < attention_count; ++i) {
      for (int n : {attention[i].q_linear, attention[i].k_linear, attention[i].v_linear,
                    attention[i].o_linear}) {
        for (size_t r = 0; r < ranks_.size(); ++r)
          taken[r] += SliceBytes(r, graph_.nodes(n).linear().weight());
      }
    }
    double bytes = 0;  // of the whole MLP
    for (int n : {block.gate_linear, block.up_linear, block.down_linear}) {
      bytes += SliceBytes(0, graph_.nodes(n).linear().weight());  // not cut yet: whole
    }
    const double unit_bytes = bytes * (static_cast<double>(unit_cols) / static_cast<double>(cols));
    const std::vector<uint64_t> units =
        DealUnitsOnTop(CeilDiv(cols, unit_cols), unit_bytes, taken, shares_);
    const std::vector<Run> runs = UnitRuns(units, unit_cols, cols);
    RETURN_IF_ERROR(CutLinear(block.gate_linear, Axis::kRows, runs));
    RETURN_IF_ERROR(CutLinear(block.up_linear, Axis::kRows, runs));
    return CutLinear(block.down_linear, Axis::kCols, runs);
  }

  absl::StatusOr<std::vector<RankCut>> Take() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (units_[r] > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", r, " of ", ranks_.size(),
          " would own no part of the model: it is too small for so many "
          "workers, or the rank's share is too small; use fewer workers or other shares"));
    }
    return std::move(ranks_);
  }

 private:
  struct HeadDeal {
    std::vector<Run> q, kv;          // of each rank
    double q_load = 0, kv_load = 0;  // of the rank with most heads for its share
  };

  HeadDeal DealHeads(const internal::Attention& attention, uint64_t unit_heads) const {
    const uint64_t group = attention.q_heads() / attention.kv_heads();
    HeadDeal deal;
    for (const Run& units : RunsOf(DealUnits(attention.q_heads() / unit_heads, shares_))) {
      const Run q{units.begin * unit_heads, units.end * unit_heads};
      const Run kv = q.empty() ? Run{q.begin / group, q.begin / group}
                               : Run{q.begin / group, (q.end - 1) / group + 1};
      const double share = shares_[deal.q.size()];
      deal.q_load = std::max(deal.q_load, static_cast<double>(q.size()) / share);
      deal.kv_load = std::max(deal.kv_load, static_cast<double>(kv.size()) / share);
      deal.q.push_back(q);
      deal.kv.push_back(kv);
    }
    return deal;
  }

  // A KV head and its Q heads stay together while that is as even as dealing Q heads one by one. A
  // KV head whose Q heads lie on two ranks is kept by both, and no rank gets more KV heads by it
  // (its cache, and what a step reads of it) unless there are fewer of them than ranks.
  HeadDeal DealHeads(const internal::Attention& attention) const {
    HeadDeal spread = DealHeads(attention, 1);
    if (attention.kv_heads() < ranks_.size()) return spread;
    HeadDeal whole = DealHeads(attention, attention.q_heads() / attention.kv_heads());
    const bool better = spread.q_load < whole.q_load && spread.kv_load <= whole.kv_load;
    return better ? std::move(spread) : std::move(whole);
  }

  // Runs of whole units in elements; the last unit may be shorter. Remembers who owns anything.
  std::vector<Run> UnitRuns(const std::vector<uint64_t>& units, uint64_t unit_size,
                            uint64_t total) {
    std::vector<Run> runs = RunsOf(units);
    for (size_t r = 0; r < runs.size(); ++r) {
      units_[r] += units[r];
      runs[r] = {std::min(runs[r].begin * unit_size, total),
                 std::min(runs[r].end * unit_size, total)};
    }
    return runs;
  }

  absl::Status Cut(uint32_t weight, Axis axis, const std::vector<Run>& runs) {
    if (std::find(cut_.begin(), cut_.end(), weight) != cut_.end()) {
      return absl::InternalError(absl::StrCat("cannot shard: '",
                                              graph_.weights(static_cast<int>(weight)).name(),
                                              "' is used in two blocks"));
    }
    cut_.push_back(weight);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      WeightSlice& slice = ranks_[r].weights[weight];
      (axis == Axis::kRows ? slice.rows : slice.cols) = runs[r];
    }
    return absl::OkStatus();
  }

  // Along the rows the bias is cut too; along the columns it is added once, after the sum over the
  // ranks.
  absl::Status CutLinear(int node, Axis axis, const std::vector<Run>& runs) {
    const Linear& linear = graph_.nodes(node).linear();
    RETURN_IF_ERROR(Cut(linear.weight(), axis, runs));
    if (axis == Axis::kRows && linear.has_bias()) return Cut(linear.bias(), Axis::kCols, runs);
    return absl::OkStatus();
  }

  double SliceBytes(size_t rank, uint32_t weight) const {
    const internal::Weight& stored = graph_.weights(static_cast<int>(weight));
    const WeightFormat* const format = FindFormat(stored.format());
    CHECK(format != nullptr) << stored.format();
    const auto bytes = StoredBytes(*format, stored.rows(), stored.cols());
    CHECK_OK(bytes.status());  // the graph's builder has compared them with the file
    const double bytes_per_value = static_cast<double>(*bytes) /
                                   static_cast<double>(std::max<uint64_t>(1, stored.rows())) /
                                   static_cast<double>(std::max<uint64_t>(1, stored.cols()));
    const WeightSlice& slice = ranks_[rank].weights[weight];
    return static_cast<double>(slice.rows.size()) * static_cast<double>(slice.cols.size()) *
           bytes_per_value;
  }

  const ModelGraph& graph_;
  const std::vector<double>& shares_;
  std::vector<RankCut> ranks_;
  std::vector<uint64_t> units_;  // owned by each rank, of any kind
  std::vector<uint32_t> cut_;
};

}  // namespace

absl::StatusOr<std::vector<RankCut>> CutGraph(const ModelGraph& graph, const Blocks& blocks,
                                              const std::vector<double>& shares) {
  Cutter cutter(graph, shares);
  RETURN_IF_ERROR(cutter.CutVocabulary(blocks));
  for (const AttentionBlock& block : blocks.attention) RETURN_IF_ERROR(cutter.CutAttention(block));
  for (size_t i = 0; i < blocks.mlp.size(); ++i) {
    const size_t begin = blocks.mlp_attention_begin[i], end = blocks.mlp_attention_end[i];
    RETURN_IF_ERROR(cutter.CutMlp(blocks.mlp[i], blocks.attention.data() + begin, end - begin));
  }
  return cutter.Take();
}

}  // namespace bitshard
