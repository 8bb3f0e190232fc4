// A progress bar on a terminal; on anything else a line now and then.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace bitshard {

class ProgressBar {
 public:
  ProgressBar();

  // "label [=====>    ] 45 %  44.1 / 98.4 MB". Redraws at most ten times a second (a line every
  // five seconds when stderr is no terminal), but always when `done` reaches `total`.
  void Update(const std::string& label, uint64_t done, uint64_t total);
  // A phase without a measure: "label ...". Drawn when the label changes.
  void Phase(const std::string& label);
  // Clears the line, so that ordinary output can follow.
  void Clear();

 private:
  const bool terminal_;
  std::string last_label_;
  bool last_complete_ = false;
  absl::Time last_drawn_ = absl::InfinitePast();
};

// "98.4 MB", "1.2 GB": decimal units.
std::string HumanBytes(uint64_t bytes);

}  // namespace bitshard
