#include "kernels/registry/linear.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/registry/kernel_probe.h"
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

// How far ahead kernels ask for their weights themselves: what comes before is asked for here.
constexpr int64_t kFirstBytes = 4096;

LinearArgs WeightArgs(const PackedMatrix& w) {
  LinearArgs args;
  args.n = w.rows();
  args.k = w.cols();
  args.codes = w.row_tiles() > 0 ? w.tile(0) : nullptr;
  args.tile_bytes = w.tile_bytes();
  args.type = w.spec().type;
  args.bits = w.spec().bits;
  if (args.type == PackedSpec::Type::kInt) args.scale = w.scale_view();
  args.matrix = &w;
  return args;
}

void AddActivations(const PreparedActivations& x, unsigned form, LinearArgs& args) {
  args.m = x.rows();
  args.padded_cols = x.padded_cols();
  args.x = x.f32(0);
  args.q = x.q(0);
  args.hi = x.hi(0);
  args.lo = x.lo(0);
  args.a8 = x.a8(0);
  const bool a8 = form == kFormA8;
  args.run_sums = a8 ? x.a8_run_sums(0) : x.run_sums(0);
  args.pair_sums = x.pair_sums(0);
  args.act_scales = a8 ? x.a8_scales(0) : x.scales(0);
  args.act_groups = a8 ? x.a8_groups() : x.groups();
  args.act_groups_per_segment = a8 ? x.a8_groups_per_segment() : x.groups_per_segment();
  args.segment_cols = x.segment_cols();
  args.segments = args.segment_cols == 0 ? 0 : (args.k + args.segment_cols - 1) / args.segment_cols;
  args.prepared = &x;
}

void PrefetchBytes(const void* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(static_cast<const char*>(from) + i);
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
  if (spec.type != PackedSpec::Type::kInt) return kFormF32;
  switch (mode) {
    case ActivationMode::kA16:
      return kFormA16;
    case ActivationMode::kA8:
      return kFormA8;
    case ActivationMode::kF32:
      break;
  }
  return kFormF32;
}

std::string RefusalOf(const LinearKernel& kernel, const LinearKey& key) {
  if (!IsFor(kernel, *key.weight)) return absl::StrCat("the weight is ", key.weight->Describe());
  return kernel.refuses(key);
}

std::string RefusesUnalignedRuns(const LinearKey& key) {
  if (key.segment_cols % kLaneCols != 0) {
    return absl::StrCat("segments of ", key.segment_cols, " columns are no multiple of 16");
  }
  if (key.weight->type == PackedSpec::Type::kInt && key.weight->groups() > 1) {
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

namespace {

struct Chosen {
  const LinearKernel* kernel = nullptr;
  std::vector<RefusedKernel> refused;
};

absl::StatusOr<Chosen> ChooseKernel(const LinearKey& key, Isa isa, const KernelOrder& order) {
  const unsigned form = FormOf(*key.weight, key.mode);
  // All that this machine runs, widest first, which is how the registry has them.
  std::vector<const LinearKernel*> widest_first;
  for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
    if (kernel->form == form && HasIsa(kernel->isa)) widest_first.push_back(kernel);
  }
  std::vector<const LinearKernel*> candidates = widest_first;
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const LinearKernel* a, const LinearKernel* b) {
                     const bool a_last = IsReference(a->name), b_last = IsReference(b->name);
                     if (a_last != b_last) return b_last;
                     return order.Place(form, a->isa) < order.Place(form, b->isa);
                   });
  const auto refusal_of = [&](const LinearKernel& kernel) -> std::string {
    return kernel.isa > isa
               ? absl::StrCat("this rank is held to ", std::string(IsaName(isa)), " by --isa")
               : RefusalOf(kernel, key);
  };
  Chosen chosen;
  for (const LinearKernel* kernel : candidates) {
    if (!refusal_of(*kernel).empty()) continue;
    chosen.kernel = kernel;
    break;
  }
  // What is told: of each set of instructions beyond the chosen kernel's, why those of its kernels
  // that are for such a weight do not run; or that there is none.
  for (const Isa set : {Isa::kAvx512Vnni, Isa::kAvx2, Isa::kScalar}) {
    const bool beyond =
        chosen.kernel == nullptr || IsReference(chosen.kernel->name) || set > chosen.kernel->isa;
    if (!beyond || !HasIsa(set)) continue;
    bool any = false;
    for (const LinearKernel* kernel : widest_first) {
      if (kernel->isa != set || IsReference(kernel->name) || !IsFor(*kernel, *key.weight)) continue;
      any = true;
      std::string why = refusal_of(*kernel);
      if (why.empty() && chosen.kernel != nullptr)
        why = order.WhySlower(form, kernel->isa, chosen.kernel->isa);
      if (!why.empty()) chosen.refused.push_back({kernel->name, std::move(why)});
    }
    if (!any) {
      chosen.refused.push_back(
          {absl::StrCat("cpu/linear_*_", FormName(form), " of ", std::string(IsaName(set))),
           absl::StrCat("there is none for ", key.weight->Describe())});
    }
  }
  if (chosen.kernel != nullptr) return chosen;
  return absl::UnimplementedError(absl::StrCat("linear: no kernel for ", key.weight->Describe(),
                                               " (", RefusalText(chosen.refused), ")"));
}

KernelChoice ToChoice(const PackedSpec& spec, const LinearKernel& kernel,
                      std::vector<RefusedKernel> refused) {
  KernelChoice choice;
  choice.format = spec.Describe();
  choice.kernel = kernel.name;
  choice.activations = FormName(kernel.form);
  choice.isa = kernel.isa;
  choice.refused = std::move(refused);
  return choice;
}

}  // namespace

absl::StatusOr<BoundLinear> BoundLinear::Bind(const PackedMatrix& w, ActivationMode mode,
                                              int64_t segment_cols, int64_t segments_total, Isa isa,
                                              const KernelOrder* order) {
  RETURN_IF_ERROR(CheckSegments(w, segment_cols, segments_total));
  ASSIGN_OR_RETURN(Chosen chosen,
                   ChooseKernel({.weight = &w.spec(), .mode = mode, .segment_cols = segment_cols},
                                isa, order == nullptr ? KernelOrder() : *order));
  ASSIGN_OR_RETURN(BoundLinear bound,
                   BindTo(*chosen.kernel, w, mode, segment_cols, segments_total));
  bound.refused_ = std::move(chosen.refused);
  return bound;
}

absl::StatusOr<KernelChoice> BoundLinear::Choose(const PackedSpec& spec, ActivationMode mode,
                                                 int64_t segment_cols, Isa isa,
                                                 const KernelOrder* order) {
  ASSIGN_OR_RETURN(Chosen chosen,
                   ChooseKernel({.weight = &spec, .mode = mode, .segment_cols = segment_cols}, isa,
                                order == nullptr ? KernelOrder() : *order));
  return ToChoice(spec, *chosen.kernel, std::move(chosen.refused));
}

absl::StatusOr<BoundLinear> BoundLinear::BindTo(const LinearKernel& kernel, const PackedMatrix& w,
                                                ActivationMode mode, int64_t segment_cols,
                                                int64_t segments_total) {
  RETURN_IF_ERROR(CheckSegments(w, segment_cols, segments_total));
  std::string refusal =
      RefusalOf(kernel, {.weight = &w.spec(), .mode = mode, .segment_cols = segment_cols});
  if (kernel.form != FormOf(w.spec(), mode)) refusal = "reads another form of activations";
  if (!refusal.empty()) return absl::InvalidArgumentError(absl::StrCat(kernel.name, ": ", refusal));
  BoundLinear bound;
  bound.w_ = &w;
  bound.impl_ = &kernel;
  bound.forms_ = kernel.form;
  bound.segment_cols_ = segment_cols;
  bound.limit_ = segment_cols > 0 ? PoisonLimit(segments_total) : 0.0f;
  bound.kernel_name_ = kernel.name;
  bound.args_ = std::make_shared<const LinearArgs>(WeightArgs(w));
  bound.first_codes_ = bound.args_->codes;
  bound.first_scales_ = bound.args_->scale.plane;
  return bound;
}

KernelChoice BoundLinear::choice() const { return ToChoice(w_->spec(), *impl_, refused_); }

LinearArgs BoundLinear::ArgsFor(const PreparedActivations& x, float* y, int64_t stride) const {
  LinearArgs args = *args_;
  CHECK(segment_cols_ == 0 && x.cols() == args.k && x.segment_cols() == args.k &&
        (x.forms() & forms_));
  AddActivations(x, forms_, args);
  args.y = y;
  args.stride = stride;
  return args;
}

void BoundLinear::Run(const PreparedActivations& x, float* y, int64_t stride,
                      ThreadPool& pool) const {
  RunTiles(*impl_, ArgsFor(x, y, stride), pool);
}

void BoundLinear::RunSegments(const PreparedActivations& x, int64_t* sums, int64_t stride,
                              int64_t* poison, ThreadPool& pool) const {
  LinearArgs args = *args_;
  CHECK(segment_cols_ > 0 && x.cols() == args.k && (x.forms() & forms_));
  CHECK(x.cols() == 0 || x.segment_cols() == segment_cols_);
  AddActivations(x, forms_, args);
  args.sums = sums;
  args.stride = stride;
  args.poison = poison;
  args.limit = limit_;
  RunTiles(*impl_, args, pool);
}

void BoundLinear::Prefetch() const {
  PrefetchBytes(args_.get(), sizeof(LinearArgs));
  if (first_codes_ != nullptr) PrefetchBytes(first_codes_, kFirstBytes);
  if (first_scales_ != nullptr) PrefetchBytes(first_scales_, kFirstBytes / 4);
}

}  // namespace bitshard
