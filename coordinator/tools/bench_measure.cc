#include "coordinator/tools/bench_measure.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <grpcpp/grpcpp.h>

#include "kernels/base/monotonic_time.h"
#include "kernels/base/status_macros.h"
#include "proto/status_map.h"

namespace bitshard {
namespace {

// How often a long line looks whether it was interrupted: rarely, for it shares the CPUs.
constexpr absl::Duration kInterruptPoll = absl::Milliseconds(100);

double Now() { return absl::ToDoubleSeconds(MonotonicNow() - absl::UnixEpoch()); }

// SplitMix64: any seed, even steps, well mixed.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

v1::GenerateRequest RequestOf(const std::string& model, const BenchCase& bench_case,
                              const std::vector<uint32_t>& prompt) {
  v1::GenerateRequest request;
  request.set_model(model);
  request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(bench_case.output_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_output()->set_text(false);
  // Nothing of it may be in the service's prefix cache, not from an earlier run with this seed.
  absl::BitGen random;
  request.set_cache_salt(absl::StrCat("bench-", absl::Hex(absl::Uniform<uint64_t>(random))));
  return request;
}

// Reads one answer to its end.
absl::Status Read(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                  const BenchCpuClock& cpu_clock, grpc::ClientContext* context,
                  BenchStream* stream) {
  stream->sent_cpu_s = cpu_clock();
  stream->sent_at_s = Now();
  auto reader = stub.Generate(context, request);
  v1::GenerateResponse piece;
  uint32_t tokens = 0;
  while (reader->Read(&piece)) {
    if (piece.has_finished()) {
      const auto& decode = piece.finished().usage().decode_time();
      stream->decode_s = static_cast<double>(decode.seconds()) + 1e-9 * decode.nanos();
    }
    if (piece.token_count() == 0) continue;
    tokens += piece.token_count();
    stream->arrivals.push_back({Now(), piece.token_count(), cpu_clock()});
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return FromGrpc(status);
  if (tokens != request.max_tokens()) {
    return absl::InternalError(absl::StrCat("an answer has ", tokens, " tokens instead of ",
                                            request.max_tokens(), " (ignore_eos is set)"));
  }
  return absl::OkStatus();
}

std::optional<double> Difference(std::optional<double> end, std::optional<double> begin) {
  if (!end || !begin) return std::nullopt;
  return *end - *begin;
}

// Tokens came in less than three quarters of the time in which the service made them; or half of
// them at once, that is, ten times as fast as it makes one on average.
bool CameInBurst(const BenchStream& stream) {
  if (stream.decode_s <= 0 || stream.arrivals.size() < 2) return false;
  const std::vector<BenchArrival>& arrivals = stream.arrivals;
  if (arrivals.back().at_s - arrivals.front().at_s < 0.75 * stream.decode_s) return true;
  std::vector<double> gaps;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double gap = (arrivals[i].at_s - arrivals[i - 1].at_s) / arrivals[i].tokens;
    gaps.insert(gaps.end(), arrivals[i].tokens, gap);
  }
  const auto middle = gaps.begin() + static_cast<ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  return *middle < 0.1 * stream.decode_s / static_cast<double>(gaps.size());
}

}  // namespace

std::string BenchCase::Name() const {
  if (kind == Kind::kPrefill) return absl::StrCat("prefill ", prompt_tokens);
  // A context of 0 is a prompt of one token: something must be generated from.
  const uint32_t context = prompt_tokens <= 1 ? 0 : prompt_tokens;
  return absl::StrCat(sequences == 1 ? "" : absl::StrCat(sequences, " x "), "decode ",
                      output_tokens, " at ", context);
}

std::vector<uint32_t> BenchPrompts::Next(uint32_t tokens) {
  std::vector<uint32_t> prompt(tokens);
  const uint64_t start = Mix(seed_ + ++given_);
  for (uint32_t i = 0; i < tokens; ++i) {
    prompt[i] = text_.empty() ? static_cast<uint32_t>(Mix(start + i) % vocabulary_size_)
                              : text_[(start % text_.size() + i) % text_.size()];
  }
  return prompt;
}

absl::StatusOr<BenchSample> SampleOf(const BenchCase& bench_case,
                                     const std::vector<BenchStream>& streams) {
  BenchSample sample;
  for (const BenchStream& stream : streams)
    sample.ttft_s.push_back(stream.arrivals.front().at_s - stream.sent_at_s);
  if (bench_case.kind == BenchCase::Kind::kPrefill) {
    const BenchStream& stream = streams.front();
    sample.tokens = bench_case.prompt_tokens;
    sample.wall_s = sample.ttft_s.front();
    sample.cpu_s = Difference(stream.arrivals.front().cpu_s, stream.sent_cpu_s);
    return sample;
  }
  for (const BenchStream& stream : streams) sample.burst |= CameInBurst(stream);
  // The phase begins with the first token of the sequence that began last, and ends with that
  // sequence's last token before any sequence ended.
  const BenchStream* latest = &streams.front();
  double first_end = streams.front().arrivals.back().at_s;
  for (const BenchStream& stream : streams) {
    if (stream.arrivals.front().at_s > latest->arrivals.front().at_s) latest = &stream;
    first_end = std::min(first_end, stream.arrivals.back().at_s);
  }
  const BenchArrival& begin = latest->arrivals.front();
  const BenchArrival* end = &begin;
  for (const BenchArrival& arrival : latest->arrivals) {
    if (arrival.at_s <= first_end) end = &arrival;
  }
  if (end->at_s <= begin.at_s) {
    return absl::FailedPreconditionError(
        absl::StrCat(bench_case.Name(),
                     ": the first sequence ended before the last one began (or all tokens came at "
                     "once); a longer --decode, or fewer --concurrent, leaves time to measure"));
  }
  sample.wall_s = end->at_s - begin.at_s;
  sample.cpu_s = Difference(end->cpu_s, begin.cpu_s);
  uint64_t latest_tokens = 0;
  for (const BenchStream& stream : streams) {
    for (size_t i = 1; i < stream.arrivals.size(); ++i) {
      const BenchArrival& arrival = stream.arrivals[i];
      if (arrival.at_s <= begin.at_s || arrival.at_s > end->at_s) continue;
      sample.tokens += arrival.tokens;
      if (&stream == latest) latest_tokens += arrival.tokens;
      const double before = stream.arrivals[i - 1].at_s;
      if (before < begin.at_s) continue;  // may hold another sequence's prompt
      sample.gaps_s.insert(sample.gaps_s.end(), arrival.tokens,
                           (arrival.at_s - before) / arrival.tokens);
    }
  }
  // Each step of the phase gives each sequence one token. Those of the first and the last step
  // arrive a little before or after the moments that bound the phase, by chance: a count that
  // differs by no more than that is the one of whole steps.
  const uint64_t whole_steps = latest_tokens * streams.size();
  const uint64_t by_chance = streams.size() - 1;
  if (whole_steps <= sample.tokens + by_chance && sample.tokens <= whole_steps + by_chance)
    sample.tokens = whole_steps;
  return sample;
}

absl::StatusOr<BenchSample> RunBenchCase(v1::Inference::Stub& stub, const std::string& model,
                                         const BenchCase& bench_case, BenchPrompts& prompts,
                                         const BenchCpuClock& cpu_clock,
                                         const std::function<bool()>& interrupted) {
  const size_t count = bench_case.sequences;
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (size_t i = 0; i < count; ++i) {
    requests.push_back(RequestOf(model, bench_case, prompts.Next(bench_case.prompt_tokens)));
    contexts.push_back(std::make_unique<grpc::ClientContext>());
  }
  std::vector<BenchStream> streams(count);
  std::vector<absl::Status> ended(count);
  absl::Mutex mu;
  size_t running = count;
  std::vector<std::thread> readers;
  for (size_t i = 0; i < count; ++i) {
    readers.emplace_back([&, i] {
      ended[i] = Read(stub, requests[i], cpu_clock, contexts[i].get(), &streams[i]);
      absl::MutexLock lock(&mu);
      --running;
    });
  }
  const auto all_ended = [&running] { return running == 0; };
  const auto await = [&] {
    absl::MutexLock lock(&mu);
    return mu.AwaitWithTimeout(absl::Condition(&all_ended), kInterruptPoll);
  };
  for (bool cancelled = false; !await();) {
    if (cancelled || !interrupted()) continue;
    cancelled = true;
    for (const auto& context : contexts) context->TryCancel();
  }
  for (std::thread& reader : readers) reader.join();
  for (const absl::Status& status : ended) RETURN_IF_ERROR(status);
  return SampleOf(bench_case, streams);
}

}  // namespace bitshard
