#include "bitshard_client/call_status.h"

#include <sstream>
#include <utility>

#include "proto/rpc_status.pb.h"

namespace bitshard::client {

CallStatus CallStatus::From(const grpc::Status& status, std::string request_id) {
  CallStatus out;
  out.code = status.error_code();
  out.message = status.error_message();
  out.request_id = std::move(request_id);
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return out;
  for (const google::protobuf::Any& detail : rich.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    google::rpc::BadRequest bad;
    google::rpc::QuotaFailure quota;
    if (detail.UnpackTo(&info)) {
      out.reason = info.reason();
    } else if (detail.UnpackTo(&retry)) {
      out.retry_after = std::chrono::milliseconds(retry.retry_delay().seconds() * 1000 +
                                                  retry.retry_delay().nanos() / 1'000'000);
    } else if (detail.UnpackTo(&bad)) {
      for (const auto& violation : bad.field_violations())
        out.fields.push_back({violation.field(), violation.description()});
    } else if (detail.UnpackTo(&quota)) {
      for (const auto& violation : quota.violations())
        out.quota.push_back(violation.subject() + ": " + violation.description());
    }
  }
  return out;
}

std::string CallStatus::ToString() const {
  std::ostringstream text;
  text << CodeName(code);
  if (!message.empty()) text << ": " << message;
  const char* separator = " (";
  const auto part = [&]() -> std::ostream& { return text << std::exchange(separator, ", "); };
  if (!reason.empty()) part() << "reason " << reason;
  if (retry_after) part() << "retry after " << retry_after->count() / 1000.0 << " s";
  if (!request_id.empty()) part() << "request " << request_id;
  if (*separator == ',') text << ")";
  return text.str();
}

const char* CodeName(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return "OK";
    case grpc::StatusCode::CANCELLED:
      return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND:
      return "NOT_FOUND";
    case grpc::StatusCode::ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case grpc::StatusCode::PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case grpc::StatusCode::UNAUTHENTICATED:
      return "UNAUTHENTICATED";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case grpc::StatusCode::ABORTED:
      return "ABORTED";
    case grpc::StatusCode::OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case grpc::StatusCode::INTERNAL:
      return "INTERNAL";
    case grpc::StatusCode::UNAVAILABLE:
      return "UNAVAILABLE";
    case grpc::StatusCode::DATA_LOSS:
      return "DATA_LOSS";
    default:
      return "UNKNOWN";
  }
}

}  // namespace bitshard::client
