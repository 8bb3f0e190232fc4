#include "coordinator/tools/scored_model.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpcpp/grpcpp.h>

#include "kernels/base/status_macros.h"
#include "proto/status_map.h"

namespace bitshard {
namespace {

// Score rounds log-probabilities to f32 and takes its exponentials in f32; a wrong row is off by
// far more.
constexpr double kAgreement = 1e-4;
// How often somebody is asked whether to go on.
constexpr std::chrono::milliseconds kLook{100};

// As worker/score_log.h writes it.
struct RecordHeader {
  uint32_t position, vocab_begin, rows, zero;
};
static_assert(sizeof(RecordHeader) == 16);

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

absl::StatusOr<std::unique_ptr<ScoredModel>> ScoredModel::Start(LocalServiceOptions options,
                                                                std::function<bool()> stopped) {
  auto model = std::unique_ptr<ScoredModel>(new ScoredModel(std::move(stopped)));
  RETURN_IF_ERROR(model->StartService(std::move(options)));
  return model;
}

absl::Status ScoredModel::StartService(LocalServiceOptions options) {
  ASSIGN_OR_RETURN(folder_, TemporaryFolder::Make("eval"));
  options.worker_flags.push_back("--score-log=" + folder_.path());
  options.log_level = "error";
  ASSIGN_OR_RETURN(service_, ReadyService::Start(std::move(options), stopped_));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  inference_ = v1::Inference::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + service_->service().port("port"),
                                grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  const grpc::Status listed = inference_->ListModels(&context, v1::ListModelsRequest(), &models);
  if (!listed.ok()) return FromGrpc(listed);
  if (models.models().empty()) return absl::InternalError("the service lists no model");
  model_ = models.models(0);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> ScoredModel::Tokenize(const std::string& text) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  const grpc::Status status = inference_->Tokenize(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  return std::vector<uint32_t>(response.token_ids().begin(), response.token_ids().end());
}

absl::Status ScoredModel::Score(const v1::ScoreRequest& request, v1::ScoreResponse* answer) {
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = inference_->AsyncScore(&context, request, &queue);
  call->Finish(answer, &status, /*tag=*/nullptr);
  const auto next_look = [] { return std::chrono::system_clock::now() + kLook; };
  void* tag = nullptr;
  bool ok = false;
  while (queue.AsyncNext(&tag, &ok, next_look()) == grpc::CompletionQueue::TIMEOUT) {
    if (stopped_()) context.TryCancel();  // a long window takes minutes
  }
  if (status.ok()) return absl::OkStatus();
  return stopped_() ? absl::CancelledError("interrupted") : FromGrpc(status);
}

absl::Status ScoredModel::Logits(const std::vector<uint32_t>& tokens, uint32_t first,
                                 std::vector<float>* logits) {
  v1::ScoreRequest request;
  request.mutable_tokens()->mutable_ids()->Add(tokens.begin(), tokens.end());
  request.set_first_token(first);
  v1::ScoreResponse answer;
  RETURN_IF_ERROR(Score(request, &answer));

  const size_t rows = tokens.size() - first;
  logits->assign(rows * model_.vocabulary_size(), 0.0f);
  std::vector<uint64_t> seen(rows, 0);
  for (const ChildProcess& worker : service_->workers()) {
    RETURN_IF_ERROR(
        TakeLog(absl::StrCat(folder_.path(), "/", worker.pid(), ".logits"), first, logits, &seen));
  }
  for (size_t row = 0; row < rows; ++row) {
    if (seen[row] == model_.vocabulary_size()) continue;
    return absl::DataLossError(absl::StrCat(
        "the workers wrote ", seen[row], " of ", model_.vocabulary_size(), " logits before token ",
        first + row, " of a window; is ", folder_.path(), " full?"));
  }
  return Compare(answer, tokens, first, *logits);
}

absl::Status ScoredModel::TakeLog(const std::string& path, uint32_t first,
                                  std::vector<float>* logits, std::vector<uint64_t>* seen) const {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::DataLossError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  const uint32_t vocabulary = model_.vocabulary_size();
  std::vector<float> values;
  RecordHeader header;
  while (std::fread(&header, sizeof header, 1, file.get()) == 1) {
    if (header.zero != 0 || header.rows > (1u << 24)) {
      return absl::DataLossError(absl::StrCat(path, ": no score log"));
    }
    values.resize(header.rows);
    if (std::fread(values.data(), sizeof(float), values.size(), file.get()) != values.size()) {
      return absl::DataLossError(absl::StrCat(path, ": ends inside a record"));
    }
    // The row at a position tells of the token after it. Nobody asked for the last one's.
    const uint64_t row = uint64_t{header.position} + 1 - first;
    if (header.position + 1 < first || row >= seen->size() || header.vocab_begin >= vocabulary)
      continue;
    const size_t count = std::min<size_t>(header.rows, vocabulary - header.vocab_begin);
    std::copy_n(values.begin(), count, logits->begin() + row * vocabulary + header.vocab_begin);
    (*seen)[row] += count;
  }
  if (truncate(path.c_str(), 0) != 0) {
    return absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status ScoredModel::Compare(const v1::ScoreResponse& answer,
                                  const std::vector<uint32_t>& tokens, uint32_t first,
                                  const std::vector<float>& logits) const {
  const size_t vocabulary = model_.vocabulary_size();
  if (static_cast<size_t>(answer.logprobs_size()) != tokens.size())
    return absl::InternalError("Score has answered for another number of tokens");
  for (size_t i = first; i < tokens.size(); ++i) {
    const float* row = logits.data() + (i - first) * vocabulary;
    const double max = *std::max_element(row, row + vocabulary);
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - max);
    const double want = row[tokens[i]] - max - std::log(sum);
    const double got = answer.logprobs(static_cast<int>(i)).chosen().logprob();
    if (std::abs(want - got) <= kAgreement) continue;
    return absl::DataLossError(
        absl::StrCat("Score gives token ", i, " of a window ", got, ", the logits say ", want));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
