// A load client: makes calls on a service as its flags say, and prints what became of each as one
// JSON document. Figures are for whoever reads that (tests/support/load_client.py).
//
//   load_client --address=127.0.0.1:50051 --callers=8 --calls=100        closed loop, 8 at a time
//   load_client --address=127.0.0.1:50051 --rate=20 --calls=400          open loop, Poisson
//   load_client --address=127.0.0.1:50051 --channels=50 --calls=10000    all at once
//
// With --blockers the calls stand behind others that occupy the service, until a line is read from
// stdin: first "blockers sent" is printed and a line awaited, then the calls are made, "calls sent"
// is printed and a line awaited, then the blockers are cancelled.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "coordinator/tools/bench_measure.h"
#include "kernels/base/command_line.h"
#include "tests/bench/load/grpc_face.h"
#include "tests/bench/load/llama_server_face.h"
#include "tests/bench/load/load_run.h"

ABSL_FLAG(std::string, address, "127.0.0.1:50051", "HOST:PORT of the service");
ABSL_FLAG(std::string, face, "bitshard", "bitshard, or llama-server (its /completion)");
ABSL_FLAG(uint32_t, channels, 1, "connections, of face bitshard");
ABSL_FLAG(uint32_t, calls, 1, "how many");
ABSL_FLAG(uint32_t, callers, 0, "closed loop: so many calls at a time");
ABSL_FLAG(double, rate, 0, "open loop: calls a second, at random moments");
ABSL_FLAG(bool, come_back, false, "who is told when to come back does so");
ABSL_FLAG(uint32_t, prompt_tokens, 32, "of each call");
ABSL_FLAG(uint32_t, output_tokens, 32, "of each call");
ABSL_FLAG(uint32_t, vocabulary, 512, "prompts are ids below");
ABSL_FLAG(uint32_t, prompts, 0, "different prompts; 0 = each call has its own");
ABSL_FLAG(uint64_t, seed, 1, "of prompts and moments");
ABSL_FLAG(std::string, cache_salt, "", "of every call");
ABSL_FLAG(bool, token_ids, false, "ask for token ids instead of text");
ABSL_FLAG(absl::Duration, timeout, absl::Minutes(10), "deadline of a call");
ABSL_FLAG(uint32_t, blockers, 0, "calls that go before all others until they are cancelled");
ABSL_FLAG(uint32_t, blocker_tokens, 1000, "of each blocker");

namespace bitshard {
namespace {

constexpr uint32_t kMaxStreamsAConnection = 1000;  // the service's bound; more would wait here
constexpr rlim_t kOtherFiles = 64;

// Each connection is an open file, and the limit may be lower than what the system allows.
absl::Status AllowFiles(uint32_t connections) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError("getrlimit failed");
  const rlim_t wanted = connections + kOtherFiles;
  if (limit.rlim_cur >= wanted) return absl::OkStatus();
  if (limit.rlim_max < wanted) {
    return absl::ResourceExhaustedError(absl::StrCat(connections, " connections need ", wanted,
                                                     " open files, but ulimit -Hn is ",
                                                     limit.rlim_max));
  }
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError("setrlimit failed");
  return absl::OkStatus();
}

std::vector<LoadCall> MakeCalls() {
  const uint32_t count = absl::GetFlag(FLAGS_calls);
  const uint32_t distinct =
      absl::GetFlag(FLAGS_prompts) == 0 ? count : std::min(count, absl::GetFlag(FLAGS_prompts));
  BenchPrompts prompts(absl::GetFlag(FLAGS_vocabulary), absl::GetFlag(FLAGS_seed));
  std::vector<LoadCall> calls(count);
  for (uint32_t i = 0; i < count; ++i) {
    calls[i].prompt = i < distinct ? prompts.Next(absl::GetFlag(FLAGS_prompt_tokens))
                                   : calls[i % distinct].prompt;
    calls[i].output_tokens = absl::GetFlag(FLAGS_output_tokens);
  }
  return calls;
}

// Says what has been done and waits until whoever reads it has answered.
void TellAndWait(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
}

// Calls that stand before all others.
class Blockers {
 public:
  explicit Blockers(uint32_t count) : records_(count), left_(count) {
    BenchPrompts prompts(absl::GetFlag(FLAGS_vocabulary), ~absl::GetFlag(FLAGS_seed));
    for (uint32_t i = 0; i < count; ++i) {
      calls_.push_back({.prompt = prompts.Next(8),
                        .output_tokens = absl::GetFlag(FLAGS_blocker_tokens),
                        .blocker = true});
    }
  }
  void Start(LoadFace& face) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      face.Start(calls_[i], &records_[i], [this] {
        std::lock_guard<std::mutex> lock(mu_);
        if (--left_ == 0) ended_.notify_all();
      });
    }
  }
  void Await() {
    std::unique_lock<std::mutex> lock(mu_);
    ended_.wait(lock, [this] { return left_ == 0; });
  }
  // Those that ended by themselves, before they were cancelled.
  size_t Completed() const {
    size_t completed = 0;
    for (const LoadRecord& record : records_) completed += record.code == absl::StatusCode::kOk;
    return completed;
  }

 private:
  std::vector<LoadCall> calls_;
  std::vector<LoadRecord> records_;
  std::mutex mu_;
  std::condition_variable ended_;
  size_t left_;
};

nlohmann::json Document(const std::vector<LoadRecord>& records, double begin) {
  nlohmann::json calls = nlohmann::json::array();
  for (const LoadRecord& record : records) {
    const auto since = [begin](double at) {
      return at == 0 ? nlohmann::json() : nlohmann::json(at - begin);
    };
    nlohmann::json call = {
        {"due_s", since(record.due_s)},
        {"sent_s", since(record.sent_s)},
        {"first_s", since(record.first_s)},
        {"end_s", since(record.end_s)},
        {"tokens", record.tokens},
        {"attempts", record.attempts},
        {"code", absl::StatusCodeToString(record.code)},
        {"message", record.message.substr(0, 200)},
        {"pushback_ms",
         record.pushback_ms.has_value() ? nlohmann::json(*record.pushback_ms) : nlohmann::json()},
        {"digest", absl::StrFormat("%016x", record.digest)}};
    calls.push_back(std::move(call));
  }
  return calls;
}

absl::Status CheckFlagValues() {
  const std::string face = absl::GetFlag(FLAGS_face);
  if (face != "bitshard" && face != "llama-server")
    return absl::InvalidArgumentError("--face: bitshard or llama-server");
  if (absl::GetFlag(FLAGS_calls) == 0 || absl::GetFlag(FLAGS_prompt_tokens) == 0 ||
      absl::GetFlag(FLAGS_output_tokens) == 0 || absl::GetFlag(FLAGS_vocabulary) == 0 ||
      absl::GetFlag(FLAGS_channels) == 0) {
    return absl::InvalidArgumentError(
        "--calls, --prompt-tokens, --output-tokens, --vocabulary, --channels: at least 1");
  }
  if (absl::GetFlag(FLAGS_rate) > 0 && absl::GetFlag(FLAGS_callers) > 0)
    return absl::InvalidArgumentError("--rate and --callers: one of them");
  const bool all_at_once = absl::GetFlag(FLAGS_rate) <= 0 && absl::GetFlag(FLAGS_callers) == 0;
  if (absl::GetFlag(FLAGS_blockers) > 0 && (face != "bitshard" || !all_at_once))
    return absl::InvalidArgumentError("--blockers: of face bitshard, without --rate and --callers");
  const uint64_t streams =
      uint64_t{all_at_once ? absl::GetFlag(FLAGS_calls) : absl::GetFlag(FLAGS_callers)} +
      absl::GetFlag(FLAGS_blockers);
  if (face == "bitshard" &&
      streams > uint64_t{absl::GetFlag(FLAGS_channels)} * kMaxStreamsAConnection) {
    return absl::InvalidArgumentError(
        absl::StrCat(streams, " calls at once on ", absl::GetFlag(FLAGS_channels),
                     " connections: the service takes ", kMaxStreamsAConnection,
                     " on each; give more --channels"));
  }
  return absl::OkStatus();
}

absl::Status RunClient() {
  LoadRun::Options options;
  options.rate = absl::GetFlag(FLAGS_rate);
  options.at_once = absl::GetFlag(FLAGS_callers);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.come_back = absl::GetFlag(FLAGS_come_back);

  Blockers blockers(absl::GetFlag(FLAGS_blockers));
  std::vector<LoadRecord> records;
  double begin = 0;
  if (absl::GetFlag(FLAGS_face) == "llama-server") {
    LlamaServerFace face(absl::GetFlag(FLAGS_address), absl::GetFlag(FLAGS_timeout));
    begin = LoadNow();
    records = LoadRun(std::move(options), &face, MakeCalls()).Run();
  } else {
    if (absl::Status status = AllowFiles(absl::GetFlag(FLAGS_channels)); !status.ok())
      return status;
    GrpcFace face({.address = absl::GetFlag(FLAGS_address),
                   .channels = absl::GetFlag(FLAGS_channels),
                   .timeout = absl::GetFlag(FLAGS_timeout),
                   .token_ids = absl::GetFlag(FLAGS_token_ids),
                   .cache_salt = absl::GetFlag(FLAGS_cache_salt)});
    if (absl::Status status = face.Connect(absl::Seconds(30)); !status.ok()) return status;
    if (absl::GetFlag(FLAGS_blockers) > 0) {
      blockers.Start(face);
      TellAndWait("blockers sent");
      options.all_begun = [&face] {
        TellAndWait("calls sent");
        face.CancelBlockers();
      };
    }
    begin = LoadNow();
    records = LoadRun(std::move(options), &face, MakeCalls()).Run();
    blockers.Await();
  }
  const nlohmann::json document = {{"calls", Document(records, begin)},
                                   {"blockers_completed", blockers.Completed()}};
  // Messages come from elsewhere, and were cut.
  std::cout << document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  bitshard::ParseCommandLine("load_client", argc, argv);
  for (const auto step : {&bitshard::CheckFlagValues, &bitshard::RunClient}) {
    const absl::Status status = step();
    if (status.ok()) continue;
    std::fprintf(stderr, "load_client: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
