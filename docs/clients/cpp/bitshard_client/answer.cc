#include "bitshard_client/answer.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <random>
#include <sstream>
#include <utility>

namespace bitshard::client {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kMaxChoices = 1024;  // more than any service takes

// Between tries where the service names no time.
constexpr milliseconds kFirstDelay{100}, kLongestDelay{5000};

std::mt19937_64& Generator() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator;
}

milliseconds Backoff(int tries) {
  const milliseconds longest =
      std::min(kLongestDelay, kFirstDelay * (int64_t{1} << std::min(tries, 10)));
  return milliseconds(
      std::uniform_int_distribution<int64_t>(longest.count() / 2, longest.count())(Generator()));
}

std::string Text(const CallStatus& status) {
  return std::string(CodeName(status.code)) + ": " + status.message;
}

}  // namespace

std::string DrawId() {
  char id[32];
  std::snprintf(id, sizeof(id), "req-%016llx", static_cast<unsigned long long>(Generator()()));
  return id;
}

Answer::Answer(const v1::GenerateRequest& request, int max_resumes)
    : request_(request),
      max_resumes_(max_resumes),
      drawn_id_(!request.has_request_id()),
      wants_ids_(request.output().token_ids()) {
  if (drawn_id_) request_.set_request_id(DrawId());
  request_.mutable_output()->set_token_ids(true);  // without ids there is nothing to go on from
  if (request.has_resume()) {
    Choice& choice = choices_[request.resume().choice()];
    choice.output_ids.assign(request.resume().output_ids().begin(),
                             request.resume().output_ids().end());
  } else {
    for (uint32_t i = 0; i < std::clamp<uint32_t>(request.choices(), 1, kMaxChoices); ++i)
      choices_[i];
  }
}

bool Answer::complete() const {
  return std::all_of(choices_.begin(), choices_.end(),
                     [](const auto& entry) { return entry.second.finished; });
}

v1::GenerateRequest Answer::Request() {
  came_ = false;
  v1::GenerateRequest request = request_;
  if (!broke_) return request;
  const bool nothing_came = std::all_of(choices_.begin(), choices_.end(), [](const auto& entry) {
    return entry.second.output_ids.empty() && !entry.second.finished;
  });
  if (choices_.size() > 1 && nothing_came) {  // all of them anew
    // The broken call may still be live.
    if (drawn_id_) request.mutable_request_id()->append("." + std::to_string(resumes_));
    if (started_) request.mutable_sampling()->set_seed(started_->seed());
    return request;
  }
  for (const auto& [index, choice] : choices_) {
    if (choice.finished) continue;
    due_ = index;
    *request.mutable_resume() = ResumeState(index, /*pending=*/0);
    break;
  }
  return request;
}

v1::Resume Answer::ResumeState(uint32_t choice, int pending) const {
  v1::Resume resume = request_.resume();
  resume.set_choice(choice);
  resume.set_supersede(true);
  const std::vector<uint32_t>& ids = choices_.at(choice).output_ids;
  resume.mutable_output_ids()->Clear();
  resume.mutable_output_ids()->Add(ids.begin(), ids.end() - pending);
  if (started_) {
    resume.set_seed(started_->seed());
    resume.set_model_fingerprint(started_->model_fingerprint());
  }
  return resume;
}

CallStatus Answer::Take(v1::GenerateResponse message, std::vector<v1::GenerateResponse>* given) {
  Accepted();
  if (message.has_started() && !started_) started_ = message.started();
  const bool covers = message.token_count() > 0 || message.has_finished();
  if (!covers && message.delta_case() == v1::GenerateResponse::DELTA_NOT_SET) {
    Give(std::move(message), given);  // a status: of no choice
    return CallStatus();
  }
  const auto found = choices_.find(message.choice());
  if (found == choices_.end()) {
    return Fault("a message of choice " + std::to_string(message.choice()) +
                 ", which was not asked for");
  }
  Choice& choice = found->second;
  if (message.token_count() > 0) {
    if (message.token_index() != choice.output_ids.size()) {
      return Fault("token " + std::to_string(message.token_index()) + " came where token " +
                   std::to_string(choice.output_ids.size()) + " was due");
    }
    if (static_cast<uint32_t>(message.token_ids_size()) != message.token_count()) {
      return Fault(std::to_string(message.token_count()) + " tokens came with " +
                   std::to_string(message.token_ids_size()) + " ids");
    }
    choice.output_ids.insert(choice.output_ids.end(), message.token_ids().begin(),
                             message.token_ids().end());
  }
  if (!covers) {
    choice.held.push_back(std::move(message));
    return CallStatus();
  }
  tries_ = breaks_ = 0;
  if (message.has_finished()) choice.finished = true;
  for (v1::GenerateResponse& held : std::exchange(choice.held, {})) Give(std::move(held), given);
  Give(std::move(message), given);
  return CallStatus();
}

void Answer::Give(v1::GenerateResponse message, std::vector<v1::GenerateResponse>* given) {
  if (message.has_started() && std::exchange(started_given_, true)) message.clear_started();
  if (message.prompt_logprobs_size() > 0 && std::exchange(prompt_given_, true))
    message.clear_prompt_logprobs();
  if (!wants_ids_) message.clear_token_ids();
  if (broke_ && choices_.size() > 1) message.clear_usage();  // of the last call alone
  given->push_back(std::move(message));
}

CallStatus Answer::WentOn() const {
  if (due_ && choices_.at(*due_).finished) return CallStatus();
  return Fault("the stream ended without the end of its answer");
}

std::optional<milliseconds> Answer::Broke(const CallStatus& status) {
  if (came_ || !began_) ++breaks_;  // else the service is away: the deadline bounds that
  if (breaks_ > max_resumes_ || !MayGoOn(status)) return std::nullopt;
  const milliseconds delay = status.retry_after ? *status.retry_after : Backoff(tries_);
  ++tries_;
  ++resumes_;
  broke_ = true;
  cause_ = Text(status);
  due_.reset();
  for (auto& [index, choice] : choices_) choice.held.clear();
  return delay;
}

void Answer::Tell(milliseconds time, CallStatus* status) const {
  if (status->code != grpc::StatusCode::UNAVAILABLE &&
      status->code != grpc::StatusCode::DEADLINE_EXCEEDED)
    return;
  const bool told = cause_ == Text(*status);
  size_t tokens = 0;
  for (const auto& [index, choice] : choices_) tokens += choice.output_ids.size();
  tokens -= static_cast<size_t>(request_.resume().output_ids_size());
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << " (after " << time.count() / 1000.0 << " s, "
       << tokens << " tokens, " << resumes_ << " resumes";
  if (!cause_.empty() && !told) text << "; last broken by " << cause_;
  text << ")";
  status->message += text.str();
}

bool Answer::MayGoOn(const CallStatus& status) const {
  // Nobody else has an id that was drawn: it is an earlier try, which the next one supersedes.
  if (status.code == grpc::StatusCode::ALREADY_EXISTS) return drawn_id_;
  if (!began_) return false;  // that was for gRPC's own tries, and they are used up
  switch (status.code) {
    case grpc::StatusCode::UNAVAILABLE:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      // What goes on waits for its place.
      return status.reason == "SLOW_READER" || (broke_ && status.retry_after.has_value());
    default:
      return false;
  }
}

CallStatus Answer::Fault(std::string what) const {
  CallStatus status;
  status.code = grpc::StatusCode::DATA_LOSS;
  status.message = std::move(what);
  status.request_id = request_id();
  return status;
}

}  // namespace bitshard::client
