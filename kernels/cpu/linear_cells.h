// Walking the cells (weight group x activation group) of a segment, in runs of 16 columns.
#pragma once

#include <cstdint>

#include "kernels/registry/linear_kernel.h"

namespace bitshard {

struct Cell {
  int64_t run = 0;        // first run: column 16 * run
  int runs = 0;           // 1..4
  int64_t group = 0;      // of the weight
  int64_t act_group = 0;  // of the row
};

// The cell that begins at `run`, inside the segment [begin_run, end_run).
inline Cell CellAt(const LinearArgs& args, int64_t segment, int64_t begin_run, int64_t end_run,
                   int64_t run) {
  const int64_t group_runs = args.group_size / kLaneCols;
  const int64_t offset_runs = args.first_group_offset / kLaneCols;
  constexpr int64_t kActRuns = kActivationGroup / kLaneCols;
  Cell cell;
  cell.run = run;
  cell.group = (run + offset_runs) / group_runs;
  const int64_t local = (run - begin_run) / kActRuns;
  cell.act_group = segment * args.act_groups_per_segment + local;
  int64_t end = (cell.group + 1) * group_runs - offset_runs;
  const int64_t act_end = begin_run + (local + 1) * kActRuns;
  if (act_end < end) end = act_end;
  if (end_run < end) end = end_run;
  cell.runs = static_cast<int>(end - run);
  return cell;
}

// Runs of a segment, the padded last one included.
inline int64_t SegmentBeginRun(const LinearArgs& args, int64_t segment) {
  return segment * args.segment_cols / kLaneCols;
}
inline int64_t SegmentEndRun(const LinearArgs& args, int64_t segment) {
  const int64_t end = (segment + 1) * args.segment_cols;
  return ((end < args.k ? end : args.k) + kLaneCols - 1) / kLaneCols;
}

}  // namespace bitshard
