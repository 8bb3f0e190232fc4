#include "absl/status/status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "proto/rpc_status.pb.h"
#include "proto/status_details.h"
#include "proto/status_map.h"

namespace bitshard {
namespace {

TEST(StatusDetails, RetryDelayComesBackWithItsFraction) {
  const absl::Status status = WithRetryInfo(absl::UnavailableError("x"), absl::Milliseconds(1500));
  EXPECT_EQ(RetryDelay(status), absl::Milliseconds(1500));
}

TEST(StatusDetails, OkStatusStaysOkAndWithoutDetails) {
  const absl::Status status = WithErrorInfo(absl::OkStatus(), "REASON");
  EXPECT_TRUE(status.ok());
  EXPECT_FALSE(ErrorReason(status).has_value());
}

TEST(StatusDetails, FieldViolationsAddUp) {
  const absl::Status status =
      WithBadField(BadFieldError("sampling.top_p", "must be in (0, 1]"), "max_tokens", "is 0");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "sampling.top_p: must be in (0, 1]");
  google::rpc::Status rich;
  ASSERT_TRUE(rich.ParseFromString(ToGrpc(status).error_details()));
  ASSERT_EQ(rich.details_size(), 1);
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(rich.details(0).UnpackTo(&bad_request));
  ASSERT_EQ(bad_request.field_violations_size(), 2);
  EXPECT_EQ(bad_request.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(bad_request.field_violations(1).description(), "is 0");
}

TEST(StatusDetails, DetailThatDoesNotParseIsNoDetail) {
  absl::Status status = absl::UnavailableError("x");
  status.SetPayload("type.googleapis.com/google.rpc.RetryInfo", absl::Cord("\xff\xff"));
  EXPECT_FALSE(RetryDelay(status).has_value());
}

TEST(StatusMap, EveryCodeKeepsItsNumberBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "m");
    EXPECT_EQ(ToGrpc(status).error_code(), code);
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
  }
}

TEST(StatusMap, DetailsTravelBothWays) {
  const absl::Status sent = WithQuotaFailure(
      WithErrorInfo(WithRetryInfo(absl::ResourceExhaustedError("queue full"), absl::Seconds(2)),
                    "QUEUE_FULL"),
      "queued_tokens", "4096 of 4096");
  EXPECT_EQ(FromGrpc(ToGrpc(sent)), sent);
}

TEST(StatusMap, StatusWithoutDetailsSendsNone) {
  EXPECT_EQ(ToGrpc(absl::NotFoundError("x")).error_details(), "");
}

TEST(StatusMap, BytesThatAreNotUtf8AreReplaced) {
  const auto wire = [](const std::string& message) {
    return ToGrpc(absl::InvalidArgumentError(message)).error_message();
  };
  EXPECT_EQ(wire("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80"), "gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
  EXPECT_EQ(wire("a\xff"
                 "b\xc3"),
            "a?b?");
  EXPECT_EQ(wire("\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80"),
            "?????????");  // overlong, surrogate, too large
}

TEST(StatusMap, LongMessageIsCutBetweenCharacters) {
  std::string message = "x";
  for (int i = 0; i < 5000; ++i) message += "\xc3\xbc";
  const std::string wire = ToGrpc(absl::InternalError(message)).error_message();
  EXPECT_EQ(wire.size(), 1023u + 3u);
  EXPECT_EQ(wire.substr(1021), "\xc3\xbc...");
}

TEST(StatusMap, DetailsTooLargeForATrailerAreDroppedNotTheStatus) {
  absl::Status status = absl::InvalidArgumentError("many");
  for (int i = 0; i < 500; ++i) status = WithBadField(status, absl::StrCat("f", i), "bad");
  EXPECT_EQ(ToGrpc(status).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ToGrpc(status).error_details(), "");
}

TEST(StatusMap, StatusFromAPeerWithBrokenDetailsKeepsCodeAndMessage) {
  const absl::Status status =
      FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone", "\xff\xff\xff"));
  EXPECT_EQ(status, absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace bitshard
