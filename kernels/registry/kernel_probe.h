// Which instruction set's linear kernels are the fastest on this very machine: measured at start,
// because what a CPU offers does not say what it is good at (halved clocks, split vectors, a shared
// unit), and a virtual machine does not tell.
//
// Every form of activations has its own order. All kernels give the same bits, so ranks may differ
// in their choice.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/cpu_features.h"
#include "kernels/registry/activations.h"

namespace bitshard {

// What the probe saw of one kernel.
struct ProbeFigure {
  std::string kernel;
  unsigned form = 0;
  Isa isa = Isa::kScalar;
  int tokens = 0;          // 1: decode; more: prefill
  double gmacs_per_s = 0;  // one thread, operands in the cache
};

// "a16", "a8", "f32".
const char* FormName(unsigned form);

class KernelOrder {
 public:
  // Widest first, as without a probe.
  KernelOrder();

  // Place of the set in the order of this form; 0 = first.
  int Place(unsigned form, Isa isa) const;
  // Why `other` comes before `isa` though it is narrower; "" when it does not.
  std::string WhySlower(unsigned form, Isa isa, Isa other) const;

  const std::vector<ProbeFigure>& figures() const { return figures_; }

 private:
  friend KernelOrder OrderOf(std::vector<ProbeFigure> figures);
  struct OfForm {
    std::array<int, 3> place;     // by Isa
    std::array<double, 3> speed;  // by Isa, geometric mean of the shapes; 0 = not measured
  };
  static size_t IndexOf(unsigned form);

  std::array<OfForm, 3> forms_;
  std::vector<ProbeFigure> figures_;
};

// A narrower set goes before a wider one only when it is faster by more than noise, by a twentieth,
// in every shape: one bad figure moves nothing.
KernelOrder OrderOf(std::vector<ProbeFigure> figures);

// Times what this machine runs, up to `widest`; some 30 ms. On the calling thread.
KernelOrder ProbeKernels(Isa widest);

}  // namespace bitshard
