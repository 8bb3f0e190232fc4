// Which neighbouring nodes one op of a device computes together: launches cost, and so does reading
// an activation twice.
#pragma once

#include <vector>

#include "proto/graph.pb.h"
#include "worker/ops/fusion.h"

namespace bitshard {

// Most linear nodes in one group; DeviceKernels::Linear takes no more.
inline constexpr int kMaxLinearMembers = 8;

// All nodes once, in order: linear nodes in a row that are not cut along K and read one value
// (q | k | v, gate | up); the ropes of q and k and the attention that alone reads them
// (IsRopeAttention); an all_reduce, the residual_add that alone reads it, and the rms_norm of the
// sum; others alone. The nodes may be malformed in every way.
std::vector<NodeGroup> GroupForDevice(const internal::ModelGraph& graph);

}  // namespace bitshard
