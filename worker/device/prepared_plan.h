// The forms in which matrices read activations (DeviceActivations): which values need one, who
// makes it, and where it lies. Forms that are not alive at the same time share memory.
//
// Owned by the bind context. A form is alive from the group of nodes that makes its value to the
// last linear node that reads it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "kernels/registry/device_kernels.h"
#include "proto/graph.pb.h"
#include "worker/ops/fusion.h"

namespace bitshard {

struct DevicePrepared {
  DeviceActivations form;
  bool made = false;  // an op that is bound already makes it in every step
};

class PreparedPlan {
 public:
  // `reads_f32`: by weight, whether it is an f32 matrix. `owned`: by weight, whether this rank has
  // any of it. REQUIRES: PlanBuffers has checked the graph.
  PreparedPlan(const internal::ModelGraph& graph, absl::Span<const NodeGroup> groups,
               const std::vector<bool>& owned, const std::vector<bool>& reads_f32);

  // Memory for `rows` rows of every form; nothing: it overflowed.
  std::optional<uint64_t> Place(uint64_t rows);
  // After Place. `f32(value)` is where its f32 values lie.
  template <typename F32>
  void SetMemory(uint8_t* memory, uint64_t rows, const F32& f32) {
    for (Entry& entry : entries_) {
      SetPointers(memory + entry.offset, rows, entry.prepared.form);
      if (entry.needs_f32) entry.prepared.form.x = f32(entry.value);
    }
  }

  // Null: no linear node of this rank reads the value like that.
  DevicePrepared* Find(uint32_t value, int64_t segment_cols);
  // For the op that makes the value and can prepare one form on the way; null: nobody wants one.
  DevicePrepared* First(uint32_t value);
  // Somebody reads the f32 values themselves, be it to prepare a second form.
  bool NeedsF32(uint32_t value) const { return needs_f32_[value]; }

  // Bytes of one form, and its pointers into so much memory.
  static std::optional<uint64_t> FormBytes(const DeviceActivations& form, uint64_t rows);
  static void SetPointers(uint8_t* memory, uint64_t rows, DeviceActivations& form);

 private:
  struct Entry {
    uint32_t value = 0;
    DevicePrepared prepared;
    bool needs_f32 = false;   // some matrix reads form.x
    int first = 0, last = 0;  // groups
    uint64_t offset = 0, bytes = 0;
  };

  std::deque<Entry> entries_;    // their addresses are given away
  std::vector<bool> needs_f32_;  // by value
};

}  // namespace bitshard
