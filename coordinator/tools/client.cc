#include "coordinator/tools/client.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <limits>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/grpcpp.h>

#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"
#include "proto/status_map.h"

ABSL_FLAG(std::string, address, "localhost:50051", "host:port of the service");
ABSL_FLAG(std::string, model_name, "", "name of the model; empty = the service's only one");
ABSL_FLAG(int64_t, max_tokens, 256, "tokens to generate at most");
ABSL_FLAG(double, temperature, 0, "0 = always the most probable token");
ABSL_FLAG(int64_t, top_k, 0, "only the k most probable tokens; 0 = all");
ABSL_FLAG(double, top_p, 1, "only the most probable tokens that together reach p");
ABSL_FLAG(double, min_p, 0, "only tokens at least this share as probable as the best");
ABSL_FLAG(int64_t, seed, -1, "the same seed gives the same answer; -1 = the service draws one");
ABSL_FLAG(std::vector<std::string>, stop, {}, "comma-separated strings that end the answer");
ABSL_FLAG(absl::Duration, timeout, absl::InfiniteDuration(),
          "deadline of one answer, for example 30s");

namespace bitshard {
namespace {

std::atomic<bool> interrupted{false};

// Ctrl-C while an answer streams: cancels the call.
class InterruptScope {
 public:
  InterruptScope() {
    interrupted = false;
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = true; };
    sigaction(SIGINT, &action, &old_);
  }
  ~InterruptScope() { sigaction(SIGINT, &old_, nullptr); }

 private:
  struct sigaction old_;
};

}  // namespace

absl::Status CheckAddress(const std::string& flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon != 0 &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, "=", address, ": give host:port, such as localhost:50051 or [::1]:50051"));
}

absl::Status CheckUtf8(const std::string& what, const std::string& text) {
  const auto invalid = FirstInvalidUtf8(text);
  if (!invalid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": must be UTF-8, and is not from byte ",
                                                 *invalid, " on; iconv converts other encodings"));
}

std::unique_ptr<v1::Inference::Stub> ConnectToService() {
  return v1::Inference::NewStub(
      grpc::CreateChannel(absl::GetFlag(FLAGS_address), grpc::InsecureChannelCredentials()));
}

absl::Status ApplyCallFlags(v1::GenerateRequest* request) {
  RETURN_IF_ERROR(CheckAddress("--address", absl::GetFlag(FLAGS_address)));
  RETURN_IF_ERROR(CheckUtf8("--model-name", absl::GetFlag(FLAGS_model_name)));
  for (const std::string& stop : absl::GetFlag(FLAGS_stop))
    RETURN_IF_ERROR(CheckUtf8("--stop", stop));
  if (!absl::GetFlag(FLAGS_model_name).empty()) request->set_model(absl::GetFlag(FLAGS_model_name));
  const int64_t max_tokens = absl::GetFlag(FLAGS_max_tokens), top_k = absl::GetFlag(FLAGS_top_k);
  if (max_tokens < 1 || max_tokens > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-tokens=", max_tokens, " must be at least 1"));
  }
  if (top_k < 0 || top_k > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("--top-k=", top_k, " must be 0 (all) or more"));
  }
  request->set_max_tokens(static_cast<uint32_t>(max_tokens));
  v1::Sampling& sampling = *request->mutable_sampling();
  sampling.set_temperature(static_cast<float>(absl::GetFlag(FLAGS_temperature)));
  sampling.set_top_k(static_cast<uint32_t>(top_k));
  sampling.set_top_p(static_cast<float>(absl::GetFlag(FLAGS_top_p)));
  sampling.set_min_p(static_cast<float>(absl::GetFlag(FLAGS_min_p)));
  if (absl::GetFlag(FLAGS_seed) >= 0)
    sampling.set_seed(static_cast<uint64_t>(absl::GetFlag(FLAGS_seed)));
  for (const std::string& stop : absl::GetFlag(FLAGS_stop))
    request->mutable_stop()->add_strings(stop);
  return absl::OkStatus();
}

std::string CallFlagsHelp() {
  return "  --address=HOST:PORT   the service (localhost:50051)\n"
         "  --model-name=NAME     when the service has several models\n"
         "  --max-tokens=N        at most so many tokens (256)\n"
         "  --temperature=T       0 = always the most probable token (0)\n"
         "  --top-k=K --top-p=P --min-p=P   narrow the choice (all)\n"
         "  --seed=S              the same seed gives the same answer, on any number of workers\n"
         "  --stop=A,B            end before the first of these strings\n"
         "  --timeout=30s         deadline of one answer (none)\n";
}

std::string Describe(const absl::Status& status) {
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  if (const auto delay = RetryDelay(status)) {
    absl::StrAppend(&text, " (try again in ", absl::FormatDuration(*delay), ")");
  }
  if (absl::StrContains(status.message(), "failed to connect") ||
      absl::StrContains(status.message(), "DNS resolution")) {
    absl::StrAppend(&text, "\nIs `bitshard serve` running, and ready, at ",
                    absl::GetFlag(FLAGS_address), "? --address=HOST:PORT says where.");
  }
  if (absl::IsUnimplemented(status) && status.message().empty()) {
    absl::StrAppend(&text, absl::GetFlag(FLAGS_address),
                    " is no bitshard inference port (the ready line of `bitshard serve` names it)");
  }
  return text;
}

absl::Status AdminError(const std::string& address, const grpc::Status& status) {
  const absl::Status error = FromGrpc(status);
  std::string message = absl::StrCat("--admin-address=", address, ": ", error.message());
  if (absl::IsUnimplemented(error) && error.message().empty())
    absl::StrAppend(&message,
                    "is no bitshard admin port (the ready line of `bitshard serve` names it)");
  if (absl::IsUnavailable(error))
    absl::StrAppend(&message, "; the ready line of `bitshard serve` names the admin port");
  return absl::Status(error.code(), message);
}

int ExitCode(const absl::Status& status) {
  return absl::IsCancelled(status) ? 130 : status.ok() ? 0 : 1;
}

absl::StatusOr<Answer> StreamAnswer(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  if (timeout != absl::InfiniteDuration())
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  InterruptScope interrupt;
  std::atomic<bool> done{false};
  std::thread watch([&] {
    while (!done) {
      if (interrupted) context.TryCancel();
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  const absl::Time start = absl::Now();
  absl::Time first = absl::InfiniteFuture();
  uint64_t tokens = 0;
  Answer answer;
  auto reader = stub.Generate(&context, request);
  v1::GenerateResponse piece;
  while (reader->Read(&piece)) {
    if (piece.token_count() > 0) {
      first = std::min(first, absl::Now());
      tokens += piece.token_count();
    }
    if (!piece.reasoning().empty()) {
      answer.reasoning += piece.reasoning();
      std::fwrite(piece.reasoning().data(), 1, piece.reasoning().size(), stderr);
    }
    if (!piece.text().empty()) {
      if (answer.text.empty() && !answer.reasoning.empty()) std::fprintf(stderr, "\n\n");
      answer.text += piece.text();
      std::fwrite(piece.text().data(), 1, piece.text().size(), stdout);
      std::fflush(stdout);
    }
    if (piece.has_finished()) answer.finished = piece.finished();
  }
  const grpc::Status status = reader->Finish();
  done = true;
  watch.join();
  if (!answer.text.empty()) std::fprintf(stdout, "\n");
  std::fflush(stdout);
  if (!status.ok()) {
    const absl::Status error = FromGrpc(status);
    if (!absl::IsDeadlineExceeded(error) || timeout == absl::InfiniteDuration()) return error;
    return absl::Status(error.code(), absl::StrCat("the answer took longer than --timeout=",
                                                   absl::FormatDuration(timeout),
                                                   "; raise it, or ask for fewer --max-tokens"));
  }
  std::string figures = absl::StrFormat("[%d prompt tokens, %d tokens",
                                        answer.finished.usage().prompt_tokens(), tokens);
  if (tokens > 0)
    absl::StrAppendFormat(&figures, ", TTFT %.0f ms", absl::ToDoubleMilliseconds(first - start));
  // The service's own clock: our messages may hold several tokens each.
  const auto& decode = answer.finished.usage().decode_time();
  const double seconds = static_cast<double>(decode.seconds()) + 1e-9 * decode.nanos();
  if (tokens > 1 && seconds > 0) {
    absl::StrAppendFormat(&figures, ", %.1f tokens/s", static_cast<double>(tokens - 1) / seconds);
  }
  std::fprintf(stderr, "%s]\n", figures.c_str());
  return answer;
}

}  // namespace bitshard
