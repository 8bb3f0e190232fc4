#include "tests/gpu/launch_log.h"

#include <functional>
#include <mutex>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/emu/state.h"
#include "kernels/cuda/emu/stream_hook.h"

namespace bitshard {
namespace {

// Guarded by the emulator's lock.
std::vector<LoggedLaunch>& Log() {
  static auto* const log = new std::vector<LoggedLaunch>;
  return *log;
}

emu::EnqueueHook previous = nullptr;

// The name without the parentheses around it, which keep a macro's argument together.
std::string NameOf(std::string kernel) {
  if (!kernel.empty() && kernel.front() == '(') kernel = kernel.substr(1, kernel.size() - 2);
  return kernel;
}

cudaError_t EnqueueLogged(cudaStream_t stream, std::function<void()> work) {
  std::function<void()> logged = [work = std::move(work)] {
    work();
    const std::lock_guard<std::mutex> lock(emu::LaunchLock());
    const dim3& grid = emu::launch.shape.grid;
    Log().push_back({NameOf(emu::launch.kernel), uint64_t{grid.x} * grid.y * grid.z});
  };
  if (previous != nullptr) return previous(stream, std::move(logged));
  logged();
  return cudaSuccess;
}

}  // namespace

void StartLaunchLog() {
  CHECK(previous == nullptr);
  previous = emu::SetEnqueueHook(&EnqueueLogged);
}

std::vector<LoggedLaunch> TakeLaunchLog() {
  const std::lock_guard<std::mutex> lock(emu::LaunchLock());
  return std::exchange(Log(), {});
}

}  // namespace bitshard
