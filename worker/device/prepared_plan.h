// The forms in which matrices read activations (DeviceActivations): which values need one, who
// makes it, and where it lies. Forms that are not alive at the same time share memory.
//
// Owned by the bind context. A form is alive from the group of nodes that makes its value to the
// last linear node that reads it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
  bool made = false;    // an op that is bound already makes it in every step
  bool clears = false;  // and makes what FormOf says
  // Other sums over ranks may be alive between whoever makes it and its last reader, in the memory
  // of that one's.
  bool meets_sums = false;
  // [tokens, sums_width] of the row-parallel matrix whose poison counts, behind them, are cleared
  // when the form is made; null: none.
  int64_t* sums = nullptr;
  int64_t sums_width = 0;

  // For one step.
  DeviceActivations FormOf(int64_t tokens) const {
    DeviceActivations of_step = form;
    if (sums != nullptr) of_step.counts = sums + tokens * sums_width;
    return of_step;
  }
};

class PreparedPlan {
 public:
  // Which parts of a form are made: half with scale and run_sum, a8.
  static constexpr unsigned kHalf = 1, kA8 = 2;
  // (weight, segment_cols): whether the matrix reads a8 in such segments; nothing: none does.
  using ReadsA8Fn = std::function<bool(uint32_t weight, int64_t segment_cols)>;

  // `reads_f32`: by weight, whether it is an f32 matrix. `owned`: by weight, whether this rank has
  // any of it. `segments`: row-parallel matrices read forms with a scale a segment; false: forms
  // with one a row, like all others. REQUIRES: PlanBuffers has checked the graph.
  PreparedPlan(const internal::ModelGraph& graph, absl::Span<const NodeGroup> groups,
               const std::vector<bool>& owned, const std::vector<bool>& reads_f32,
               bool segments = true, const ReadsA8Fn& reads_a8 = nullptr);

  // Memory for `rows` rows of every form; nothing: it overflowed.
  std::optional<uint64_t> Place(uint64_t rows);
  // After Place. `f32(value)` is where its f32 values lie.
  template <typename F32>
  void SetMemory(uint8_t* memory, uint64_t rows, const F32& f32) {
    for (Entry& entry : entries_) {
      SetPointers(memory + entry.offset, rows, entry.prepared.form, entry.parts);
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
  static std::optional<uint64_t> FormBytes(const DeviceActivations& form, uint64_t rows,
                                           unsigned parts = kHalf);
  static void SetPointers(uint8_t* memory, uint64_t rows, DeviceActivations& form,
                          unsigned parts = kHalf);

 private:
  struct Entry {
    uint32_t value = 0;
    DevicePrepared prepared;
    unsigned parts = 0;
    bool needs_f32 = false;   // some matrix reads form.x
    int first = 0, last = 0;  // groups
    uint64_t offset = 0, bytes = 0;
  };

  std::deque<Entry> entries_;    // their addresses are given away
  std::vector<bool> needs_f32_;  // by value
};

}  // namespace bitshard
