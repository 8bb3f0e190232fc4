// Which kernels the nodes of a graph were bound to, for the kernel report.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/registry/kernel_choice.h"
#include "proto/graph.pb.h"
#include "proto/worker.pb.h"
#include "worker/ops/fusion.h"

namespace bitshard {

// "linear", "rms_norm"; "?" without an op.
const char* NodeKindName(const internal::Node& node);
// "linear+linear+linear".
std::string GroupKindName(const internal::ModelGraph& graph, const NodeGroup& group);

// `choices`: node and what it runs on, in the order of the nodes. One a distinct choice.
std::vector<internal::KernelChoice> KernelReport(
    const internal::ModelGraph& graph, const std::vector<std::pair<int, KernelChoice>>& choices);

}  // namespace bitshard
