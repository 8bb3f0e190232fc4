// Walking K strip by strip: a strip is a few 64-column tiles that a kernel unpacks once for many
// rows of x, cut into the cells (weight group x activation group) of linear.h, each inside one
// segment. Plain code, no division on the way.
#pragma once

#include <cstdint>

#include "kernels/registry/linear_kernel.h"

namespace bitshard {

inline constexpr int kTileRuns = kTileCols / kLaneCols;

struct StripCell {
  int run = 0;            // first run, counted from the strip's first tile
  int runs = 0;           // at least 1
  int64_t group = 0;      // of the weight
  int64_t act_group = 0;  // of the row
  bool opens = false;     // its segment begins here
  bool closes = false;    // its segment ends here
};

template <int kMaxTiles>
struct Strip {
  static constexpr int kMaxCells = kMaxTiles * kTileRuns;
  int64_t first_tile = 0;  // of 64 columns
  int tiles = 0;
  bool last = false;
  int cells = 0;
  StripCell cell[kMaxCells];
};

// Weight groups and activation groups may be left out (mode f32 has none): then cells end only with
// segments and strips.
class StripWalk {
 public:
  StripWalk(const LinearArgs& args, bool groups, int act_cols) : args_(args) {
    if (groups && args.scale.groups > 1) {
      group_runs_ = args.scale.group_size / kLaneCols;
      const int64_t offset_runs = args.scale.first_group_offset / kLaneCols;
      group_ = offset_runs / group_runs_;
      group_end_ = (group_ + 1) * group_runs_ - offset_runs;
    }
    if (act_cols > 0) act_runs_ = act_cols / kLaneCols;
    OpenSegment();
  }

  // False at the end of K.
  template <int kMaxTiles>
  bool Next(Strip<kMaxTiles>& strip) {
    if (segment_ >= args_.segments) return false;
    strip.first_tile = run_ / kTileRuns;
    strip.cells = 0;
    const int64_t base = strip.first_tile * kTileRuns;
    const int64_t limit = base + kMaxTiles * kTileRuns;
    int64_t end = run_;
    while (segment_ < args_.segments && run_ < limit) {
      end = segment_end_;
      if (act_end_ < end) end = act_end_;
      if (group_end_ < end) end = group_end_;
      if (end > limit) {
        if (act_runs_ > 0) break;  // integer cells stay whole: the next strip has it
        end = limit;
      }
      StripCell& cell = strip.cell[strip.cells++];
      cell.run = static_cast<int>(run_ - base);
      cell.runs = static_cast<int>(end - run_);
      cell.group = group_;
      cell.act_group = act_group_;
      cell.opens = run_ == segment_begin_;
      cell.closes = end == segment_end_;
      run_ = end;
      if (run_ == group_end_) ++group_, group_end_ += group_runs_;
      if (run_ == act_end_) ++act_group_, act_end_ += act_runs_;
      if (cell.closes) {
        ++segment_;
        OpenSegment();
      }
    }
    strip.tiles = static_cast<int>((run_ - base + kTileRuns - 1) / kTileRuns);
    strip.last = segment_ >= args_.segments;
    return true;
  }

 private:
  static constexpr int64_t kNever = INT64_MAX / 2;

  void OpenSegment() {
    segment_begin_ = run_;
    const int64_t end = (segment_ + 1) * args_.segment_cols;
    segment_end_ = ((end < args_.k ? end : args_.k) + kLaneCols - 1) / kLaneCols;
    act_group_ = segment_ * args_.act_groups_per_segment;
    if (act_runs_ > 0) act_end_ = run_ + act_runs_;
  }

  const LinearArgs& args_;
  int64_t run_ = 0, segment_ = 0, segment_begin_ = 0, segment_end_ = 0;
  int64_t group_ = 0, group_runs_ = 0, group_end_ = kNever;
  int64_t act_group_ = 0, act_runs_ = 0, act_end_ = kNever;
};

}  // namespace bitshard
