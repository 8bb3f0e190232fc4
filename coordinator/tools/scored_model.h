// A model in a service of its own, asked for the logits of every position of a text: one side of
// `bitshard eval kld`.
//
// Whole rows of logits are no answer for a public call: 200 kB and more a position. So they do not
// go through gRPC at all. The tokens go through Score, like those of any client (chunks, scheduler,
// all ranks), and each worker, started with --score-log, appends the vocabulary rows that it owns
// to a file of its own before it acknowledges a step. When Score has answered, all files are
// complete; they are read, joined by vocabulary row, and cut to nothing. A window is in memory
// once, whatever the length of the text, for any number of workers on this machine, and what is
// compared is what the workers really computed, to the bit. Score's own log-probabilities must
// agree with the rows.
//
// Used from one thread: the main one (see child_process.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/tools/child_process.h"
#include "coordinator/tools/local_service.h"
#include "proto/inference.grpc.pb.h"

namespace bitshard {

class ScoredModel {
 public:
  // Starts the service and waits until it is ready. `stopped` is asked meanwhile, and while Logits
  // waits: true = CANCELLED.
  static absl::StatusOr<std::unique_ptr<ScoredModel>> Start(LocalServiceOptions options,
                                                            std::function<bool()> stopped);

  const v1::Model& model() const { return model_; }
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text);

  // Logits before each of tokens[first ..]: [tokens.size() - first][vocabulary]. REQUIRES:
  // 1 <= first < tokens.size().
  absl::Status Logits(const std::vector<uint32_t>& tokens, uint32_t first,
                      std::vector<float>* logits);

 private:
  explicit ScoredModel(std::function<bool()> stopped) : stopped_(std::move(stopped)) {}
  absl::Status StartService(LocalServiceOptions options);
  absl::Status Score(const v1::ScoreRequest& request, v1::ScoreResponse* answer);
  // Reads one worker's file and empties it. `seen`: columns found so far, by row.
  absl::Status TakeLog(const std::string& path, uint32_t first, std::vector<float>* logits,
                       std::vector<uint64_t>* seen) const;
  absl::Status Compare(const v1::ScoreResponse& answer, const std::vector<uint32_t>& tokens,
                       uint32_t first, const std::vector<float>& logits) const;

  const std::function<bool()> stopped_;
  TemporaryFolder folder_;  // of the logs; outlives the service
  std::unique_ptr<ReadyService> service_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  v1::Model model_;
};

}  // namespace bitshard
