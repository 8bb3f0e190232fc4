// What the workers of a group hold in an epoch: slots and a paged KV cache whose cells say whose
// they are. It runs step plans, and refuses whatever a real worker could not run or would run into
// wrong KV for.
//
// A cell keeps the digest of the position that was written there (truth.h), so that every read can
// be compared with what the slot's own tokens ask for: a block that two sequences write, that was
// given away too early, that is served to who must not share it or that was never filled is found
// at the next row that reads it. Within a step no row may read or write a block that another row
// writes. Cells also remember whether what wrote them was finite; a row that reads or writes one
// that is not says so in its result.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/plan.pb.h"

namespace bitshard::sim {

class CacheModel {
 public:
  struct Shape {
    uint64_t term = 0, epoch = 0;
    uint32_t blocks = 0, block_tokens = 0, max_slots = 0, max_step_tokens = 0;
  };

  // `bad_blocks`: places in memory where whatever is written is not finite.
  CacheModel(const Shape& shape, absl::Span<const uint32_t> bad_blocks);

  // INTERNAL with what is wrong with the plan: nothing a worker may be asked to do.
  absl::StatusOr<std::unique_ptr<internal::StepResult>> Run(const internal::StepPlan& plan);

  // How many of the bad blocks somebody has written to.
  uint32_t bad_blocks_met() const { return bad_blocks_met_; }
  // The seeds of those who wrote to bad blocks.
  const std::set<uint64_t>& bad_writers() const { return bad_writers_; }

 private:
  struct Cell {
    uint64_t digest = 0;  // 0: never written in this epoch
    uint64_t seed = 0;    // of who wrote it
    uint32_t position = 0;
    bool finite = true;
  };
  struct Slot {
    bool used = false;
    uint32_t gen = 0, n_prompt = 0, computed = 0, score_from = 1;
    uint64_t seed = 0, key = 0;
    uint32_t identity = 0, min_tokens = 0;
    internal::Pooling pooling = internal::POOLING_NONE;
    uint64_t pooled = 0;
    std::vector<uint32_t> end_tokens;
    std::vector<uint32_t> history;
    std::vector<uint64_t> digests;  // [i] covers history[0..i]
    std::vector<uint32_t> blocks;
  };
  struct Row {
    Slot* slot = nullptr;
    uint32_t index = 0, start = 0, end = 0, output_index = 0, flags = 0;
    const std::string* mask = nullptr;
    bool finite = true;
  };
  struct Writer {
    uint64_t step = 0;
    uint32_t slot = 0;
  };

  absl::Status Enter(const internal::NewSequence& sequence);
  absl::Status ReadRows(const internal::StepPlan& plan);
  absl::Status TakeBlocks(Slot& slot, absl::Span<const uint32_t> blocks);
  absl::Status CheckRow(const Row& row) const;
  absl::Status MarkWritten(const Row& row, uint64_t step);
  absl::Status CheckReads(Row& row, uint64_t step) const;
  void Write(Row& row);
  void Score(const Row& row, internal::StepResult* result) const;
  void Embed(const Row& row, internal::StepResult* result) const;
  absl::Status Sample(const Row& row, internal::StepResult* result);
  static void Append(Slot& slot, uint32_t token);
  const Cell& CellAt(const Slot& slot, uint32_t position) const {
    return cells_[size_t{slot.blocks[position / shape_.block_tokens]} * shape_.block_tokens +
                  position % shape_.block_tokens];
  }
  Cell& CellAt(const Slot& slot, uint32_t position) {
    return const_cast<Cell&>(static_cast<const CacheModel*>(this)->CellAt(slot, position));
  }

  const Shape shape_;
  std::vector<Slot> slots_;
  std::vector<Cell> cells_;      // [block, position in block]
  std::vector<Writer> writers_;  // by block: the last step that wrote it
  std::vector<bool> bad_, met_;  // by block
  std::vector<Row> rows_;        // of the plan that runs
  uint64_t last_step_ = 0;
  uint32_t bad_blocks_met_ = 0;
  std::set<uint64_t> bad_writers_;
};

}  // namespace bitshard::sim
