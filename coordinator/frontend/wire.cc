#include "coordinator/frontend/wire.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/time/time.h"

#include "proto/status_details.h"

namespace bitshard {

absl::Status MalformedError(const std::string& name) {
  return WithErrorInfo(
      absl::InvalidArgumentError(absl::StrCat("the request's bytes are no valid ", name,
                                              ": broken protobuf, or a string that is not UTF-8; "
                                              "generate your client from proto/inference.proto")),
      "MALFORMED_REQUEST");
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.ByteSizeLong());
  // A fresh slice is ours alone to write.
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Status EndOfCall(grpc::CallbackServerContext* context, const absl::Status& status) {
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    if (const std::optional<absl::Duration> delay = RetryDelay(status)) {
      const int64_t ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(*delay));
      context->AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(ms));
    }
  }
  return ToGrpc(status);
}

std::string CallerOf(const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return "";
  const std::vector<grpc::string_ref> identity = auth->GetPeerIdentity();
  return identity.empty() ? "" : std::string(identity[0].data(), identity[0].size());
}

}  // namespace bitshard
