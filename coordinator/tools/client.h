// What `complete` and `chat` share: flags of a call, and streaming an answer to the terminal.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/inference.grpc.pb.h"

namespace bitshard {

// Whether it is host:port. INVALID_ARGUMENT begins with `flag`: "--address".
absl::Status CheckAddress(const std::string& flag, const std::string& address);

// INVALID_ARGUMENT begins with `what`, as gRPC takes no other text.
absl::Status CheckUtf8(const std::string& what, const std::string& text);

// A channel to --address. REQUIRES: ApplyCallFlags was fine with it.
std::unique_ptr<v1::Inference::Stub> ConnectToService();

// Fills model, max_tokens, sampling and stop from the flags, and checks --address. INVALID_ARGUMENT
// names a bad flag.
absl::Status ApplyCallFlags(v1::GenerateRequest* request);

// The help text of the flags that ApplyCallFlags and ConnectToService read.
std::string CallFlagsHelp();

// For people: code, message, when to try again; a hint where the service cannot be reached.
std::string Describe(const absl::Status& status);

// Of a failed call to an admin port: the message names the address, and says what to do when
// another port is there.
absl::Status AdminError(const std::string& address, const grpc::Status& status);

// The exit code of a verb that ended with this status: 130 after Ctrl-C, as shells have it.
int ExitCode(const absl::Status& status);

struct Answer {
  std::string text;
  std::string reasoning;
  v1::Finished finished;
};

// Streams the answer to stdout as it comes, and the reasoning before it to stderr, then one line of
// figures (TTFT, tokens/s) to stderr.
// Ctrl-C cancels the call, not the program. `absl::StatusCode::kCancelled` tells the caller that it
// did.
absl::StatusOr<Answer> StreamAnswer(v1::Inference::Stub& stub, const v1::GenerateRequest& request);

}  // namespace bitshard
