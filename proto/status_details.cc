#include "proto/status_details.h"

#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

#include "proto/rpc_status.pb.h"

namespace bitshard {
namespace {

constexpr absl::string_view kDomain = "bitshard";

template <typename Detail>
std::string TypeUrl() {
  return absl::StrCat("type.googleapis.com/", Detail::descriptor()->full_name());
}

template <typename Detail>
std::optional<Detail> Get(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(TypeUrl<Detail>());
  Detail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

template <typename Detail>
void Set(const Detail& detail, absl::Status& status) {
  status.SetPayload(TypeUrl<Detail>(), absl::Cord(detail.SerializeAsString()));
}

}  // namespace

absl::Status WithRetryInfo(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo info;
  absl::Duration rest;
  info.mutable_retry_delay()->set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &rest));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  Set(info, status);
  return status;
}

absl::Status WithErrorInfo(absl::Status status, absl::string_view reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(std::string(kDomain));
  Set(info, status);
  return status;
}

absl::Status WithBadField(absl::Status status, absl::string_view field,
                          absl::string_view description) {
  google::rpc::BadRequest request =
      Get<google::rpc::BadRequest>(status).value_or(google::rpc::BadRequest());
  google::rpc::BadRequest::FieldViolation* violation = request.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  Set(request, status);
  return status;
}

absl::Status WithQuotaFailure(absl::Status status, absl::string_view subject,
                              absl::string_view description) {
  google::rpc::QuotaFailure failure =
      Get<google::rpc::QuotaFailure>(status).value_or(google::rpc::QuotaFailure());
  google::rpc::QuotaFailure::Violation* violation = failure.add_violations();
  violation->set_subject(std::string(subject));
  violation->set_description(std::string(description));
  Set(failure, status);
  return status;
}

absl::Status BadFieldError(absl::string_view field, absl::string_view description) {
  return WithBadField(absl::InvalidArgumentError(absl::StrCat(field, ": ", description)), field,
                      description);
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const auto info = Get<google::rpc::RetryInfo>(status);
  if (!info) return std::nullopt;
  return absl::Seconds(info->retry_delay().seconds()) +
         absl::Nanoseconds(info->retry_delay().nanos());
}

std::optional<std::string> ErrorReason(const absl::Status& status) {
  const auto info = Get<google::rpc::ErrorInfo>(status);
  if (!info) return std::nullopt;
  return info->reason();
}

}  // namespace bitshard
