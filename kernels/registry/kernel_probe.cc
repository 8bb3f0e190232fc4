#include "kernels/registry/kernel_probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/linear.h"
#include "kernels/registry/linear_kernel.h"

namespace bitshard {
namespace {

constexpr unsigned kForms[] = {kFormF32, kFormA16, kFormA8};
constexpr double kNoise = 1.05;

// 4-bit codes in groups of 32, the most common weights: 48 KiB with their scales.
constexpr int64_t kRows = 128, kCols = 512;
constexpr int kTokens[] = {1, 16};
constexpr auto kLeastTime = std::chrono::microseconds(600);
constexpr int kRepeats = 3;

PackedMatrix ProbeMatrix() {
  PackedSpec spec;
  spec.rows = kRows;
  spec.cols = kCols;
  spec.type = PackedSpec::Type::kInt;
  spec.bits = 4;
  spec.zero_point = 8;
  spec.group_size = 32;
  PackedMatrixBuilder builder(spec);
  std::vector<uint8_t> codes(kCols);
  const std::vector<uint16_t> scales(kCols / 32, F32ToF16(0.01f));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      codes[static_cast<size_t>(col)] = static_cast<uint8_t>((row * 7 + col * 5) % 16);
    }
    builder.SetIntRow(static_cast<uint64_t>(row), codes.data(), scales.data());
  }
  return std::move(builder).Build();
}

ActivationMode ModeOf(unsigned form) {
  return form == kFormA16  ? ActivationMode::kA16
         : form == kFormA8 ? ActivationMode::kA8
                           : ActivationMode::kF32;
}

// Of this thread: what else the machine does meanwhile does not count.
std::chrono::nanoseconds CpuTime() {
  timespec now = {};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// The fastest of some runs. The pool has no thread but the caller.
double Measure(const LinearKernel& kernel, const PackedMatrix& w, const PreparedActivations& x,
               ThreadPool& pool) {
  const auto bound = BoundLinear::BindTo(kernel, w, ModeOf(kernel.form), 0, 0);
  CHECK_OK(bound.status());
  std::vector<float> y(static_cast<size_t>(x.rows() * kRows));
  const double macs = static_cast<double>(x.rows()) * kRows * kCols;
  double best = 0;
  const std::chrono::nanoseconds end = CpuTime() + kRepeats * kLeastTime;
  // A slow set has one run.
  for (int repeat = 0; repeat < kRepeats && (best == 0 || CpuTime() < end); ++repeat) {
    int runs = 0;
    const std::chrono::nanoseconds begin = CpuTime();
    std::chrono::nanoseconds now;
    do {
      bound->Run(x, y.data(), kRows, pool);
      ++runs;
      now = CpuTime();
    } while (now - begin < kLeastTime);
    const std::chrono::duration<double> took = now - begin;
    best = std::max(best, macs * runs / took.count());
  }
  return best * 1e-9;
}

// Faster by more than noise in every shape that both were measured in.
bool Beats(const std::vector<ProbeFigure>& figures, unsigned form, Isa one, Isa other) {
  bool any = false;
  for (const ProbeFigure& a : figures) {
    if (a.form != form || a.isa != one) continue;
    for (const ProbeFigure& b : figures) {
      if (b.form != form || b.isa != other || b.tokens != a.tokens) continue;
      if (a.gmacs_per_s <= kNoise * b.gmacs_per_s) return false;
      any = true;
    }
  }
  return any;
}

}  // namespace

const char* FormName(unsigned form) {
  return form == kFormA16 ? "a16" : form == kFormA8 ? "a8" : "f32";
}

size_t KernelOrder::IndexOf(unsigned form) {
  for (size_t i = 0; i < std::size(kForms); ++i) {
    if (kForms[i] == form) return i;
  }
  CHECK(false) << "form " << form;
  return 0;
}

KernelOrder::KernelOrder() { forms_.fill({.place = {2, 1, 0}, .speed = {0, 0, 0}}); }

int KernelOrder::Place(unsigned form, Isa isa) const {
  return forms_[IndexOf(form)].place[static_cast<size_t>(isa)];
}

std::string KernelOrder::WhySlower(unsigned form, Isa isa, Isa other) const {
  if (other >= isa || Place(form, other) > Place(form, isa)) return "";
  const std::array<double, 3>& speed = forms_[IndexOf(form)].speed;
  return absl::StrFormat("slower here: %.1f GMAC/s, %s %.1f", speed[static_cast<size_t>(isa)],
                         std::string(IsaName(other)), speed[static_cast<size_t>(other)]);
}

KernelOrder OrderOf(std::vector<ProbeFigure> figures) {
  KernelOrder order;
  for (size_t f = 0; f < std::size(kForms); ++f) {
    KernelOrder::OfForm& form = order.forms_[f];
    std::array<double, 3> logs = {};
    std::array<int, 3> counts = {};
    for (const ProbeFigure& figure : figures) {
      if (figure.form != kForms[f] || !(figure.gmacs_per_s > 0)) continue;
      logs[static_cast<size_t>(figure.isa)] += std::log(figure.gmacs_per_s);
      ++counts[static_cast<size_t>(figure.isa)];
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) form.speed[i] = std::exp(logs[i] / counts[i]);
    }
    // Widest first; each narrower one moves up past those that it beats. What was not measured
    // keeps its place.
    std::vector<size_t> sets = {2, 1, 0}, measured, places;
    for (size_t i = 0; i < sets.size(); ++i) {
      if (form.speed[sets[i]] == 0) continue;
      measured.push_back(sets[i]);
      places.push_back(i);
    }
    for (size_t i = 1; i < measured.size(); ++i) {
      for (size_t at = i; at > 0; --at) {
        if (!Beats(figures, kForms[f], static_cast<Isa>(measured[at]),
                   static_cast<Isa>(measured[at - 1])))
          break;
        std::swap(measured[at], measured[at - 1]);
      }
    }
    for (size_t i = 0; i < measured.size(); ++i) sets[places[i]] = measured[i];
    for (size_t i = 0; i < sets.size(); ++i) form.place[sets[i]] = static_cast<int>(i);
  }
  order.figures_ = std::move(figures);
  return order;
}

KernelOrder ProbeKernels(Isa widest) {
  const PackedMatrix w = ProbeMatrix();
  ThreadPool pool(1);
  std::vector<float> values(static_cast<size_t>(kTokens[1] * kCols));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i % 251) * 0.01f - 1.25f;
  std::vector<ProbeFigure> figures;
  for (const unsigned form : kForms) {
    const LinearKey key{.weight = &w.spec(), .mode = ModeOf(form), .segment_cols = 0};
    for (const Isa isa : kAllIsas) {
      if (isa > widest || !HasIsa(isa)) continue;
      for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
        if (kernel->form != form || kernel->isa != isa || IsReference(kernel->name) ||
            !RefusalOf(*kernel, key).empty())
          continue;
        for (const int tokens : kTokens) {
          PreparedActivations x;
          x.Reserve(tokens, kCols, 0);
          x.Prepare(values.data(), tokens, kCols, kCols, 0, form, isa, pool);
          figures.push_back({.kernel = kernel->name,
                             .form = form,
                             .isa = isa,
                             .tokens = tokens,
                             .gmacs_per_s = Measure(*kernel, w, x, pool)});
        }
        break;  // the registry has the fastest of a set first
      }
    }
  }
  return OrderOf(std::move(figures));
}

}  // namespace bitshard
