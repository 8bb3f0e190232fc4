#include "worker/ops/op.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/check.h"

namespace bitshard {
namespace {

struct Entry {
  std::string name;
  BindOpFn bind;
};

std::map<int, Entry>& Registry() {
  static auto* registry = new std::map<int, Entry>;
  return *registry;
}

}  // namespace

RegisterOp::RegisterOp(internal::Node::OpCase kind, const char* name, BindOpFn bind) {
  CHECK(Registry().emplace(kind, Entry{name, bind}).second) << "op registered twice: " << name;
}

absl::StatusOr<std::unique_ptr<Op>> BindOp(const internal::Node& node, BindContext& bind) {
  const auto it = Registry().find(node.op_case());
  if (it == Registry().end()) {
    return absl::UnimplementedError(
        absl::StrCat("graph node ", node.name(), ": this worker has no op of kind ", node.op_case(),
                     "; it has ", absl::StrJoin(RegisteredOps(), ", ")));
  }
  absl::StatusOr<std::unique_ptr<Op>> op = it->second.bind(node, bind);
  if (!op.ok()) {
    return absl::Status(op.status().code(),
                        absl::StrCat("graph node ", node.name(), " (", it->second.name,
                                     "): ", op.status().message()));
  }
  return op;
}

std::vector<std::string> RegisteredOps() {
  std::vector<std::string> names;
  for (const auto& [kind, entry] : Registry()) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace bitshard
