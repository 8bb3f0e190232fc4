#include "worker/device/device_profile.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "worker/step/kernel_report.h"

namespace bitshard {

absl::Status DeviceProfile::Bind(Device& device, const internal::ModelGraph& graph,
                                 const std::vector<NodeGroup>& groups, bool by_ops,
                                 StepProfile* profile) {
  device_ = &device;
  profile_ = profile;
  if (profile_ == nullptr) return absl::OkStatus();
  profile_->kinds.clear();
  for (size_t i = 0; by_ops && i < groups.size(); ++i)
    profile_->kinds.push_back(absl::StrCat("device ", GroupKindName(graph, groups[i])));
  profile_->kinds.push_back(by_ops ? "device lm_head" : "device");
  for (size_t i = 0; by_ops && i <= profile_->kinds.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceEvent> event, device.NewTimedEvent());
    passed_.push_back(std::move(event));
  }
  profile_->kinds.push_back("sample");
  profile_->op_ns.assign(profile_->kinds.size(), 0);
  return absl::OkStatus();
}

int64_t DeviceProfile::Lap() {
  const Clock::time_point now = Clock::now();
  return std::chrono::nanoseconds(now - std::exchange(last_, now)).count();
}

void DeviceProfile::BeginStep() {
  if (profile_ != nullptr) last_ = Clock::now();
}

absl::Status DeviceProfile::BeginOp(size_t op, DeviceStream& stream) {
  return by_ops() ? device_->Record(*passed_[op], stream) : absl::OkStatus();
}

absl::Status DeviceProfile::EndDevice() {
  if (profile_ == nullptr) return absl::OkStatus();
  const int64_t all = Lap();
  if (!by_ops()) profile_->op_ns[0] += all;
  for (size_t i = 0; i + 1 < passed_.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t took, device_->ElapsedNs(*passed_[i], *passed_[i + 1]));
    profile_->op_ns[i] += took;
  }
  return absl::OkStatus();
}

void DeviceProfile::EndSampling() {
  if (profile_ != nullptr) profile_->op_ns.back() += Lap();
}

}  // namespace bitshard
