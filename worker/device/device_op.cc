#include "worker/device/device_op.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/check.h"

namespace bitshard {
namespace {

struct Entry {
  std::string name;
  BindDeviceOpFn bind;
};

std::map<int, Entry>& Registry() {
  static auto* registry = new std::map<int, Entry>;
  return *registry;
}

}  // namespace

RegisterDeviceOp::RegisterDeviceOp(internal::Node::OpCase kind, const char* name,
                                   BindDeviceOpFn bind) {
  CHECK(Registry().emplace(kind, Entry{name, bind}).second)
      << "device op registered twice: " << name;
}

absl::StatusOr<std::unique_ptr<DeviceOp>> BindDeviceGroup(const NodeGroup& group,
                                                          DeviceBindContext& bind) {
  const internal::Node& node = bind.graph().nodes(group.first);
  const auto it = Registry().find(node.op_case());
  if (it == Registry().end()) {
    return absl::UnimplementedError(
        absl::StrCat("graph node ", node.name(), ": there is no op of kind ", node.op_case(),
                     " for devices; there are ", absl::StrJoin(RegisteredDeviceOps(), ", "),
                     "; --device=cpu has others"));
  }
  if (it->second.bind == nullptr) {
    return absl::UnimplementedError(absl::StrCat("graph node ", node.name(), ": on a device ",
                                                 it->second.name, " must be among the last nodes"));
  }
  absl::StatusOr<std::unique_ptr<DeviceOp>> op = it->second.bind(group, bind);
  if (!op.ok()) {
    return WithContext(op.status(), absl::StrCat("graph node ", node.name(), " (", it->second.name,
                                                 " on a device): "));
  }
  return op;
}

std::vector<std::string> RegisteredDeviceOps() {
  std::vector<std::string> names;
  for (const auto& [kind, entry] : Registry()) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace bitshard
