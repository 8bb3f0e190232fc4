#include "kernels/tensor/device.h"

#include <map>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/check.h"

namespace bitshard {
namespace {

constexpr char kLostUrl[] = "bitshard/device_lost";

std::map<std::string, OpenDeviceFn>& Registry() {
  static auto* const registry = new std::map<std::string, OpenDeviceFn>;
  return *registry;
}

}  // namespace

absl::Status DeviceLostError(absl::string_view text) {
  absl::Status status = absl::InternalError(text);
  status.SetPayload(kLostUrl, absl::Cord());
  return status;
}

bool IsDeviceLost(const absl::Status& status) { return status.GetPayload(kLostUrl).has_value(); }

absl::Status WithContext(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) return status;
  absl::Status told(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload(
      [&told](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

RegisterDevice::RegisterDevice(const char* kind, OpenDeviceFn open) {
  const bool is_new = Registry().emplace(kind, open).second;
  CHECK(is_new) << kind << " is registered twice";
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& kind, int index) {
  const auto entry = Registry().find(kind);
  if (entry == Registry().end()) {
    return absl::UnimplementedError(absl::StrCat(
        "this program was built without the device \"", kind, "\"; it has ",
        absl::StrJoin(DeviceKinds(), ", "),
        kind == "cuda" ? " (bazel build --config=cuda makes a program with CUDA)" : ""));
  }
  return entry->second(index);
}

std::vector<std::string> DeviceKinds() {
  std::vector<std::string> kinds;
  for (const auto& [kind, open] : Registry()) kinds.push_back(kind);
  return kinds;
}

}  // namespace bitshard
