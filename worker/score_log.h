// A file with the raw logits of every position that a worker samples after or scores, for
// `bitshard eval`: each rank writes its own vocabulary rows to FOLDER/PID.logits.
//
// A record a position, in the order of the steps: four u32 (position in its sequence, first
// vocabulary row, number of rows, 0), then that many f32; native byte order. It is written before
// the step is acknowledged, so that whoever has the answer finds it complete. The reader may cut
// the file to nothing when it has read it: writes always go to its end.
//
// Written by the step thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace bitshard {

class ScoreLog {
 public:
  static absl::StatusOr<std::unique_ptr<ScoreLog>> Open(const std::string& folder);
  ~ScoreLog();

  // A failure is logged once; then nothing more is written, and the reader misses it.
  void Write(uint32_t position, uint32_t vocab_begin, absl::Span<const float> logits);

 private:
  ScoreLog(std::string path, int file) : path_(std::move(path)), file_(file) {}

  const std::string path_;
  int file_;
  bool broken_ = false;
};

}  // namespace bitshard
