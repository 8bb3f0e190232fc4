// The lists of kernels: filled before main by the files that define kernels, read-only afterwards.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/base/cpu_features.h"

namespace bitshard {

// Kernel is a struct with `const char* name`, `Isa isa` and `int cost` (an order only: lower is
// faster).
template <typename Kernel>
class KernelRegistry {
 public:
  static KernelRegistry& Get() {
    static KernelRegistry registry;
    return registry;
  }

  // Fastest first, names break ties, so that the order of registration does not matter.
  void Add(const Kernel* kernel) {
    auto place = kernels_.begin();
    const auto before = [](const Kernel& a, const Kernel& b) {
      return a.cost != b.cost ? a.cost < b.cost : std::string_view(a.name) < b.name;
    };
    while (place != kernels_.end() && before(**place, *kernel)) ++place;
    kernels_.insert(place, kernel);
  }

  const std::vector<const Kernel*>& all() const { return kernels_; }

  // The fastest that needs no more than `isa` and runs on this machine; null when there is none.
  const Kernel* Fastest(Isa isa) const {
    for (const Kernel* kernel : kernels_) {
      if (kernel->isa <= isa && HasIsa(kernel->isa)) return kernel;
    }
    return nullptr;
  }

 private:
  std::vector<const Kernel*> kernels_;
};

// `const RegisterKernel<LinearKernel> kRegistered({...});` at namespace scope.
template <typename Kernel>
class RegisterKernel {
 public:
  explicit RegisterKernel(const Kernel& kernel) : kernel_(kernel) {
    KernelRegistry<Kernel>::Get().Add(&kernel_);
  }
  RegisterKernel(const RegisterKernel&) = delete;

 private:
  const Kernel kernel_;
};

}  // namespace bitshard
