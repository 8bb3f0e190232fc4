// Typed details on an absl::Status: what the caller's program may act on, next to the message for
// people.
//
// A detail is a google.rpc message kept as a payload of the status, under its Any type URL;
// proto/status_map.h carries it to the wire and back. Nothing here knows gRPC, so every room may
// use it. All functions leave an OK status alone.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bitshard {

// Adds google.rpc.RetryInfo: try again, but not before `delay`.
absl::Status WithRetryInfo(absl::Status status, absl::Duration delay);

// Adds google.rpc.ErrorInfo{reason, domain "bitshard"}. `reason` is UPPER_SNAKE_CASE and part of
// the public contract.
absl::Status WithErrorInfo(absl::Status status, absl::string_view reason);

// Adds one field violation to google.rpc.BadRequest; may be called again for further fields.
absl::Status WithBadField(absl::Status status, absl::string_view field,
                          absl::string_view description);

// Adds one violation to google.rpc.QuotaFailure: `subject` is the limit ("queued_tokens"),
// `description` its state.
absl::Status WithQuotaFailure(absl::Status status, absl::string_view subject,
                              absl::string_view description);

// INVALID_ARGUMENT about one field of a request, with the matching BadRequest: "<field>:
// <description>".
absl::Status BadFieldError(absl::string_view field, absl::string_view description);

// What the details say, or nullopt when there is no such detail (or a peer sent one that does not
// parse).
std::optional<absl::Duration> RetryDelay(const absl::Status& status);
std::optional<std::string> ErrorReason(const absl::Status& status);

}  // namespace bitshard
