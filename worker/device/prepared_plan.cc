#include "worker/device/prepared_plan.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

#include "kernels/base/checked_math.h"
#include "kernels/tensor/packed_matrix.h"
#include "worker/ops/buffer_plan.h"

namespace bitshard {
namespace {

using internal::Node;

constexpr uint64_t kAlignment = 256;

struct Pieces {
  uint64_t half = 0, scale = 0, run_sum = 0, a8 = 0;  // bytes, rounded up
  uint64_t bytes() const { return half + scale + run_sum + a8; }
};

std::optional<Pieces> PiecesOf(const DeviceActivations& form, uint64_t rows, unsigned parts) {
  const auto piece = [rows](int64_t count, uint64_t element) -> std::optional<uint64_t> {
    const auto bytes = CheckedProduct({rows, static_cast<uint64_t>(count), element});
    if (!bytes.has_value() || *bytes > UINT64_MAX / 8) return std::nullopt;
    return RoundUp(*bytes, kAlignment);
  };
  const auto half = piece(form.padded_cols, sizeof(uint16_t));
  const auto scale = piece(form.segments(), sizeof(float));
  const auto run_sum = piece(form.padded_cols / kLaneCols, sizeof(float));
  const auto a8 = piece(form.padded_cols / kTileCols, kA8RecordBytes);
  if (!half.has_value() || !scale.has_value() || !run_sum.has_value() || !a8.has_value())
    return std::nullopt;
  Pieces pieces;
  if (parts & PreparedPlan::kHalf) pieces = {*half, *scale, *run_sum};
  if (parts & PreparedPlan::kA8) pieces.a8 = *a8;
  return pieces;
}

// Whether a node of the groups [first, last) reads or writes sums over ranks.
bool MeetSums(const internal::ModelGraph& graph, absl::Span<const NodeGroup> groups, int first,
              int last) {
  const auto is_sum = [&](uint32_t value) {
    return IsSumOverRanks(graph.values(static_cast<int>(value)));
  };
  for (int g = first; g < last; ++g) {
    const NodeGroup& group = groups[static_cast<size_t>(g)];
    for (int n = group.first; n < group.first + group.count; ++n) {
      const Node& node = graph.nodes(n);
      if (absl::c_any_of(node.inputs(), is_sum) || absl::c_any_of(node.outputs(), is_sum))
        return true;
    }
  }
  return false;
}

}  // namespace

PreparedPlan::PreparedPlan(const internal::ModelGraph& graph, absl::Span<const NodeGroup> groups,
                           const std::vector<bool>& owned, const std::vector<bool>& reads_f32,
                           bool segments, const ReadsA8Fn& reads_a8)
    : needs_f32_(static_cast<size_t>(graph.values_size()), false) {
  std::vector<int> maker(needs_f32_.size(), 0);  // group, by value
  for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
    const NodeGroup& group = groups[static_cast<size_t>(g)];
    for (int n = group.first; n < group.first + group.count; ++n) {
      const Node& node = graph.nodes(n);
      for (const uint32_t value : node.outputs()) maker[value] = g;
      if (!node.has_linear()) {
        for (const uint32_t value : node.inputs()) needs_f32_[value] = true;
        continue;
      }
      const uint32_t weight = node.linear().weight();
      if (node.inputs_size() != 1 || weight >= owned.size() || !owned[weight]) continue;
      const uint32_t value = node.inputs(0);
      const int64_t segment_cols =
          segments ? static_cast<int64_t>(node.linear().segment_cols()) : 0;
      Entry* entry = nullptr;
      bool has_other_form = false;
      for (Entry& known : entries_) {
        if (known.value != value) continue;
        if (known.prepared.form.segment_cols == segment_cols) {
          entry = &known;
        } else {
          has_other_form = true;
        }
      }
      if (entry == nullptr) {
        entry = &entries_.emplace_back();
        entry->value = value;
        entry->first = maker[value];
        DeviceActivations& form = entry->prepared.form;
        form.cols = static_cast<int64_t>(graph.values(static_cast<int>(value)).width());
        form.padded_cols =
            static_cast<int64_t>(RoundUp(static_cast<uint64_t>(form.cols), kTileCols));
        form.segment_cols = segment_cols;
        // Who makes the value prepares one form; another is made of the f32 values, later.
        if (has_other_form) needs_f32_[value] = true;
      }
      entry->last = g;
      entry->parts |= reads_a8 != nullptr && reads_a8(weight, segment_cols) ? kA8 : kHalf;
      if (reads_f32[weight]) entry->needs_f32 = needs_f32_[value] = true;
    }
  }
  for (Entry& entry : entries_)
    entry.prepared.meets_sums = MeetSums(graph, groups, entry.first, entry.last);
}

std::optional<uint64_t> PreparedPlan::Place(uint64_t rows) {
  uint64_t all = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    const std::optional<uint64_t> bytes = FormBytes(entry.prepared.form, rows, entry.parts);
    if (!bytes.has_value()) return std::nullopt;
    entry.bytes = *bytes;
    // First fit among those that are alive together with it and have a place.
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (size_t j = 0; j < i; ++j) {
      const Entry& other = entries_[j];
      if (other.first > entry.last || other.last < entry.first) continue;
      taken.emplace_back(other.offset, other.offset + other.bytes);
    }
    std::sort(taken.begin(), taken.end());
    entry.offset = 0;
    for (const auto& [begin, end] : taken) {
      if (entry.offset + entry.bytes <= begin) break;
      entry.offset = std::max(entry.offset, end);
    }
    all = std::max(all, entry.offset + entry.bytes);
  }
  return all;
}

DevicePrepared* PreparedPlan::Find(uint32_t value, int64_t segment_cols) {
  for (Entry& entry : entries_) {
    if (entry.value == value && entry.prepared.form.segment_cols == segment_cols)
      return &entry.prepared;
  }
  return nullptr;
}

DevicePrepared* PreparedPlan::First(uint32_t value) {
  for (Entry& entry : entries_) {
    if (entry.value == value) return &entry.prepared;
  }
  return nullptr;
}

std::optional<uint64_t> PreparedPlan::FormBytes(const DeviceActivations& form, uint64_t rows,
                                                unsigned parts) {
  const std::optional<Pieces> pieces = PiecesOf(form, rows, parts);
  if (!pieces.has_value()) return std::nullopt;
  return pieces->bytes();
}

void PreparedPlan::SetPointers(uint8_t* memory, uint64_t rows, DeviceActivations& form,
                               unsigned parts) {
  const Pieces pieces = *PiecesOf(form, rows, parts);
  if (parts & kHalf) {
    form.half = reinterpret_cast<uint16_t*>(memory);
    form.scale = reinterpret_cast<float*>(memory + pieces.half);
    form.run_sum = reinterpret_cast<float*>(memory + pieces.half + pieces.scale);
  }
  if (parts & kA8) form.a8 = memory + (pieces.bytes() - pieces.a8);
}

}  // namespace bitshard
