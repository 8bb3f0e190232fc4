// How a call ended: gRPC's status with the google.rpc details of bitshard's status contract read
// (the head of proto/inference.proto).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/support/status.h>

namespace bitshard::client {

// A field of the request that is wrong: its path ("sampling.top_p") and why.
struct FieldViolation {
  std::string field;
  std::string description;
};

struct CallStatus {
  // Reads the details. Those that do not parse, a proxy's perhaps, are left out.
  static CallStatus From(const grpc::Status& status, std::string request_id);

  bool ok() const { return code == grpc::StatusCode::OK; }
  // For logs: "UNAVAILABLE: ... (reason WORKER_LOST, retry after 2 s, request req-1)".
  std::string ToString() const;

  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string message;
  // ErrorInfo.reason, stable and for programs: "QUEUE_FULL". Empty when the service gave none.
  std::string reason;
  // RetryInfo: try again, but not before. Absent when the service did not say.
  std::optional<std::chrono::milliseconds> retry_after;
  // BadRequest: every field that is wrong.
  std::vector<FieldViolation> fields;
  // QuotaFailure: the limits that were hit, "subject: state".
  std::vector<std::string> quota;
  // As in the service's log.
  std::string request_id;
};

// "UNAVAILABLE".
const char* CodeName(grpc::StatusCode code);

}  // namespace bitshard::client
