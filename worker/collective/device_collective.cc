// The libraries of device collectives, and the group of one that needs none.
#include "worker/collective/device_collective.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "worker/collective/event_wait.h"
#include "worker/collective/solo.h"

namespace bitshard {
namespace {

std::map<std::string, DeviceCollectiveLibrary>& Libraries() {
  static auto* const libraries = new std::map<std::string, DeviceCollectiveLibrary>;
  return *libraries;
}

class SoloDeviceCollective final : public SoloOf<DeviceCollective> {
 public:
  explicit SoloDeviceCollective(Device* device) : device_(*device) {}

  absl::Status OpenWindow(const DeviceBuffer&, DeviceStream&) override { return Alive(); }
  absl::Status AllReduceSum(int64_t*, size_t, DeviceStream&) override { return Alive(); }
  absl::Status AllReduceSum(float*, size_t, DeviceStream&) override { return Alive(); }
  absl::Status AllGather(const void* mine, void* all, size_t bytes, DeviceStream& stream) override {
    RETURN_IF_ERROR(Alive());
    if (bytes == 0 || mine == all) return absl::OkStatus();
    return device_.Copy(all, mine, bytes, stream);
  }
  using DeviceCollective::Await;
  absl::Status Await(DeviceEvent& event, absl::FunctionRef<void()> meanwhile) override {
    return AwaitEvent(
        device_, event, [this] { return Alive(); }, meanwhile);
  }

 private:
  Device& device_;
};

}  // namespace

std::unique_ptr<DeviceCollective> MakeSoloDeviceCollective(Device* device) {
  return std::make_unique<SoloDeviceCollective>(device);
}

RegisterDeviceCollective::RegisterDeviceCollective(const DeviceCollectiveLibrary& library) {
  const bool is_new = Libraries().emplace(library.name, library).second;
  CHECK(is_new) << library.name << " is registered twice";
}

std::vector<std::string> DeviceCollectives(const std::string& device_kind) {
  std::vector<std::string> names;
  for (const auto& [name, library] : Libraries()) {
    if (library.device_kind == device_kind) names.push_back(name);
  }
  return names;
}

std::string DeviceIdentity(const Device& device) {
  for (const auto& [name, library] : Libraries()) {
    if (library.device_kind == device.facts().kind) return library.identify(device);
  }
  return "";
}

std::string PeerWarning(const Device& device, int ranks) {
  for (const auto& [name, library] : Libraries()) {
    if (library.device_kind == device.facts().kind) return library.peer_warning(device, ranks);
  }
  return "";
}

absl::StatusOr<DeviceBuffer> AllocCollectiveMemory(Device& device, size_t bytes) {
  for (const auto& [name, library] : Libraries()) {
    if (library.device_kind != device.facts().kind) continue;
    absl::StatusOr<DeviceBuffer> memory = library.alloc(device, bytes);
    if (memory.ok() || IsDeviceLost(memory.status())) return memory;
    LogInfo("{}: no memory that ranks can share, plain memory instead: {}", name,
            std::string(memory.status().message()));
  }
  return device.Alloc(bytes);
}

absl::StatusOr<std::unique_ptr<DeviceCollective>> JoinDeviceCollective(
    const std::string& name, const DeviceGroup& group, absl::Duration timeout,
    const std::atomic<bool>* stop) {
  CHECK(group.device != nullptr);
  if (group.world == 1 && group.rank == 0) return MakeSoloDeviceCollective(group.device);
  return JoinOverLibrary(name, group, timeout, stop);
}

absl::StatusOr<std::unique_ptr<DeviceCollective>> JoinOverLibrary(const std::string& name,
                                                                  const DeviceGroup& group,
                                                                  absl::Duration timeout,
                                                                  const std::atomic<bool>* stop) {
  CHECK(group.device != nullptr);
  if (group.world < 1 || group.rank < 0 || group.rank >= group.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("device collective: rank ", group.rank, " of ", group.world));
  }
  const std::string& kind = group.device->facts().kind;
  const auto found = Libraries().find(name);
  if (found == Libraries().end() || found->second.device_kind != kind) {
    const std::vector<std::string> names = DeviceCollectives(kind);
    return absl::UnimplementedError(absl::StrCat(
        "ranks on ", kind, " devices cannot meet over \"", name, "\": this program has ",
        names.empty() ? "no collective library for them" : absl::StrJoin(names, ", "),
        "; a worker for GPUs is built with --config=cuda"));
  }
  return found->second.join(group, timeout, stop);
}

}  // namespace bitshard
