#include "kernels/registry/linear.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/registry/linear_kernel.h"

namespace bitshard {
namespace {

// The smallest float that is not below 2^31 / segments: comparing with it is comparing with the
// exact quotient.
float PoisonLimit(int64_t segments_total) {
  const double exact = 0x1p31 / static_cast<double>(segments_total);
  const float rounded = static_cast<float>(exact);
  return static_cast<double>(rounded) < exact ? std::nextafterf(rounded, HUGE_VALF) : rounded;
}

LinearArgs ArgsOf(const PackedMatrix& w, const PreparedActivations& x) {
  LinearArgs args;
  args.n = w.rows();
  args.k = w.cols();
  args.codes = w.row_tiles() > 0 ? w.tile(0) : nullptr;
  args.tile_bytes = w.tile_bytes();
  args.scales = w.row_tiles() > 0 ? w.scales(0) : nullptr;
  args.scale_stride = w.scale_stride();
  args.type = w.spec().type;
  args.bits = w.spec().bits;
  args.zero_point = w.spec().zero_point;
  args.group_size = w.spec().group_size;
  args.first_group_offset = w.spec().first_group_offset;
  args.has_min = w.spec().has_min;
  args.m = x.rows();
  args.padded_cols = x.padded_cols();
  args.x = x.f32(0);
  args.q = x.q(0);
  args.hi = x.hi(0);
  args.lo = x.lo(0);
  args.run_sums = x.run_sums(0);
  args.act_scales = x.scales(0);
  args.act_groups = x.groups();
  args.act_groups_per_segment = x.groups_per_segment();
  args.segment_cols = x.segment_cols();
  args.segments = args.segment_cols == 0 ? 0 : (args.k + args.segment_cols - 1) / args.segment_cols;
  args.matrix = &w;
  args.prepared = &x;
  return args;
}

void RunTiles(const LinearKernel& kernel, const LinearArgs& args, ThreadPool& pool) {
  const int64_t tiles = (args.n + kTileRows - 1) / kTileRows;
  // Some chunks a thread, so that a slow core does not hold up the others.
  const int64_t chunks =
      pool.threads() == 1 ? 1 : std::min<int64_t>(tiles, int64_t{4} * pool.threads());
  pool.ParallelFor(chunks, [&](int64_t chunk, int) {
    kernel.run(args, tiles * chunk / chunks, tiles * (chunk + 1) / chunks);
  });
}

absl::Status CheckSegments(const PackedMatrix& w, int64_t segment_cols, int64_t segments_total) {
  if (segment_cols < 0 ||
      (segment_cols > 0 && (segments_total < 1 || segments_total > (int64_t{1} << 31)))) {
    return absl::InvalidArgumentError(absl::StrCat("linear: segments of ", segment_cols,
                                                   " columns, ", segments_total,
                                                   " in total, make no sense"));
  }
  if (segment_cols > 0 && (w.cols() + segment_cols - 1) / segment_cols > segments_total) {
    return absl::InvalidArgumentError(absl::StrCat("linear: ", w.cols(), " columns hold more than ",
                                                   segments_total, " segments of ", segment_cols));
  }
  return absl::OkStatus();
}

}  // namespace

unsigned FormOf(const PackedSpec& spec, ActivationMode mode) {
  return spec.type == PackedSpec::Type::kInt && mode == ActivationMode::kA16 ? kFormA16 : kFormF32;
}

std::string RefusesUnalignedRuns(const LinearKey& key) {
  if (key.segment_cols % kLaneCols != 0) {
    return absl::StrCat("segments of ", key.segment_cols, " columns are no multiple of 16");
  }
  if (key.weight->type == PackedSpec::Type::kInt) {
    if (key.weight->group_size % kLaneCols != 0) {
      return absl::StrCat("groups of ", key.weight->group_size, " columns are no multiple of 16");
    }
    if (key.weight->first_group_offset % kLaneCols != 0) {
      return absl::StrCat("the cut lies ", key.weight->first_group_offset,
                          " columns inside a group, no multiple of 16");
    }
  }
  return "";
}

absl::StatusOr<BoundLinear> BoundLinear::Bind(const PackedMatrix& w, ActivationMode mode,
                                              int64_t segment_cols, int64_t segments_total,
                                              Isa isa) {
  RETURN_IF_ERROR(CheckSegments(w, segment_cols, segments_total));
  const LinearKey key{.weight = &w.spec(), .mode = mode, .segment_cols = segment_cols};
  std::string reasons;
  for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
    if (kernel->form != FormOf(w.spec(), mode) || !HasIsa(kernel->isa)) continue;
    const std::string refusal =
        kernel->isa > isa ? absl::StrCat("this rank is held to ", std::string(IsaName(isa)))
                          : kernel->refuses(key);
    if (refusal.empty()) {
      ASSIGN_OR_RETURN(BoundLinear bound, BindTo(*kernel, w, mode, segment_cols, segments_total));
      bound.reason_ = std::move(reasons);
      return bound;
    }
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", kernel->name, ": ", refusal);
  }
  return absl::UnimplementedError(
      absl::StrCat("linear: no kernel for ", w.spec().Describe(), " (", reasons, ")"));
}

absl::StatusOr<BoundLinear> BoundLinear::BindTo(const LinearKernel& kernel, const PackedMatrix& w,
                                                ActivationMode mode, int64_t segment_cols,
                                                int64_t segments_total) {
  RETURN_IF_ERROR(CheckSegments(w, segment_cols, segments_total));
  std::string refusal =
      kernel.refuses({.weight = &w.spec(), .mode = mode, .segment_cols = segment_cols});
  if (kernel.form != FormOf(w.spec(), mode)) refusal = "reads another form of activations";
  if (!refusal.empty()) return absl::InvalidArgumentError(absl::StrCat(kernel.name, ": ", refusal));
  BoundLinear bound;
  bound.w_ = &w;
  bound.impl_ = &kernel;
  bound.forms_ = kernel.form;
  bound.segment_cols_ = segment_cols;
  bound.limit_ = segment_cols > 0 ? PoisonLimit(segments_total) : 0.0f;
  bound.kernel_name_ = kernel.name;
  return bound;
}

void BoundLinear::Run(const PreparedActivations& x, float* y, int64_t stride,
                      ThreadPool& pool) const {
  CHECK(segment_cols_ == 0 && x.cols() == w_->cols() && x.segment_cols() == x.cols() &&
        (x.forms() & forms_));
  LinearArgs args = ArgsOf(*w_, x);
  args.y = y;
  args.stride = stride;
  RunTiles(*impl_, args, pool);
}

void BoundLinear::RunSegments(const PreparedActivations& x, int64_t* sums, int64_t stride,
                              int64_t* poison, ThreadPool& pool) const {
  CHECK(segment_cols_ > 0 && x.cols() == w_->cols() && (x.forms() & forms_));
  CHECK(x.cols() == 0 || x.segment_cols() == segment_cols_);
  LinearArgs args = ArgsOf(*w_, x);
  args.sums = sums;
  args.stride = stride;
  args.poison = poison;
  args.limit = limit_;
  RunTiles(*impl_, args, pool);
}

}  // namespace bitshard
