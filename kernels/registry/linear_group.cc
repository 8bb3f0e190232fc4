// LinearGroup of kernels/registry/linear.h.
#include <algorithm>
#include <array>

#include "kernels/base/check.h"
#include "kernels/registry/linear.h"
#include "kernels/registry/linear_kernel.h"

namespace bitshard {
namespace {

// Chunks a thread, so that a slow core does not hold up the others.
constexpr int64_t kChunks = 4;
// Outputs of all members that RunInUnits makes between two calls of `done`: they stay in the
// second-level cache.
constexpr int64_t kUnitFloats = 32 << 10;

// What a row tile costs, in steps of one multiplication: m rows of arithmetic, or bytes from
// memory at about a quarter of that rate.
int64_t TileCost(const LinearArgs& args) {
  return 4 * (args.tile_bytes + args.scale.tile_bytes) + args.m * kTileRows * args.k + 1;
}

int64_t RowTiles(const LinearArgs& args) { return (args.n + kTileRows - 1) / kTileRows; }

void AddBias(const LinearGroup::Member& member, int64_t m, int64_t begin, int64_t end) {
  if (member.bias == nullptr) return;
  for (int64_t r = 0; r < m; ++r) {
    float* y = member.y + r * member.stride;
    for (int64_t i = begin; i < end; ++i) y[i] += member.bias[i];
  }
}

}  // namespace

LinearGroup::LinearGroup(std::vector<Member> members) {
  CHECK_LE(members.size(), kMaxMembers);
  for (const Member& member : members) {
    CHECK_EQ(member.linear->w_->cols(), members[0].linear->w_->cols());
    members_.push_back(member);
    bound_.push_back(*member.linear);
  }
}

unsigned LinearGroup::forms() const {
  unsigned forms = 0;
  for (const BoundLinear& linear : bound_) forms |= linear.forms();
  return forms;
}

void LinearGroup::Run(const PreparedActivations& x, ThreadPool& pool) const {
  std::array<LinearArgs, kMaxMembers> args;
  // Tiles of all members in a row; member i has those that cost [costs[i], costs[i + 1]).
  std::array<int64_t, kMaxMembers + 1> costs = {};
  int64_t tiles = 0;
  for (size_t i = 0; i < bound_.size(); ++i) {
    args[i] = bound_[i].ArgsFor(x, members_[i].y, members_[i].stride);
    costs[i + 1] = costs[i] + RowTiles(args[i]) * TileCost(args[i]);
    tiles += RowTiles(args[i]);
  }
  const int64_t total = costs[members_.size()];
  const int64_t chunks =
      pool.threads() == 1 ? std::min<int64_t>(tiles, 1) : std::min(tiles, kChunks * pool.threads());
  pool.ParallelFor(chunks, [&](int64_t chunk, int) {
    const int64_t from = total * chunk / chunks, to = total * (chunk + 1) / chunks;
    for (size_t i = 0; i < bound_.size(); ++i) {
      const int64_t of_tile = TileCost(args[i]);
      // The first tile that begins at or after `cost`.
      const auto tile_at = [&](int64_t cost) {
        const int64_t inside = std::max<int64_t>(0, cost - costs[i]);
        return std::min(RowTiles(args[i]), (inside + of_tile - 1) / of_tile);
      };
      const int64_t begin = tile_at(from), end = tile_at(to);
      if (begin >= end) continue;
      bound_[i].impl_->run(args[i], begin, end);
      AddBias(members_[i], x.rows(), begin * kTileRows, std::min(args[i].n, end * kTileRows));
    }
  });
}

void LinearGroup::RunInUnits(const PreparedActivations& x, int64_t unit_rows, DoneFn done,
                             ThreadPool& pool) const {
  CHECK(unit_rows > 0 && unit_rows % kTileRows == 0) << unit_rows;
  if (members_.empty()) return;
  std::array<LinearArgs, kMaxMembers> args;
  for (size_t i = 0; i < members_.size(); ++i) {
    args[i] = bound_[i].ArgsFor(x, members_[i].y, members_[i].stride);
    CHECK_EQ(args[i].n, args[0].n);
  }
  const int64_t rows = args[0].n;
  const int64_t units = (rows + unit_rows - 1) / unit_rows;
  const int64_t chunks =
      pool.threads() == 1 ? std::min<int64_t>(units, 1) : std::min(units, kChunks * pool.threads());
  const int64_t floats =
      std::max<int64_t>(1, x.rows()) * unit_rows * static_cast<int64_t>(members_.size());
  const int64_t units_at_once = std::max<int64_t>(1, kUnitFloats / floats);
  pool.ParallelFor(chunks, [&](int64_t chunk, int) {
    const int64_t last = units * (chunk + 1) / chunks;
    for (int64_t unit = units * chunk / chunks; unit < last; unit += units_at_once) {
      const int64_t begin = unit * unit_rows;
      const int64_t end = std::min(rows, std::min(last, unit + units_at_once) * unit_rows);
      for (size_t i = 0; i < members_.size(); ++i) {
        bound_[i].impl_->run(args[i], begin / kTileRows, (end + kTileRows - 1) / kTileRows);
        AddBias(members_[i], x.rows(), begin, end);
      }
      done(begin, end);
    }
  });
}

void LinearGroup::Prefetch() const {
  for (const BoundLinear& linear : bound_) linear.Prefetch();
}

}  // namespace bitshard
