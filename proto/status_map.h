// The one place where absl::Status and grpc::Status meet.
//
// Codes have the same numbers on both sides. Payloads of the absl::Status (proto/status_details.h)
// travel as the details of a google.rpc.Status in the grpc-status-details-bin trailer, as every
// gRPC client library expects them. Messages may quote hostile input: what is not UTF-8 is
// replaced, and what is long is cut, because clients refuse trailers of more than 8 KiB and would
// then see RESOURCE_EXHAUSTED instead of the real status.
#pragma once

#include "absl/status/status.h"
#include <grpcpp/support/status.h>

namespace bitshard {

grpc::Status ToGrpc(const absl::Status& status);

// Details that do not parse are dropped; code and message always survive.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace bitshard
