// A RecordingSink that also knows how much text came with how many tokens: what a caller has when
// its stream breaks.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/recording_sink.h"

namespace bitshard {

// For deltas of one token; one thread.
class PieceSink : public RecordingSink {
 public:
  using RecordingSink::RecordingSink;
  void OnDelta(TokenDelta delta) override {
    EXPECT_EQ(delta.tokens.size(), 1u);
    pieces_.push_back(delta.text);
    RecordingSink::OnDelta(std::move(delta));
  }

  const std::vector<std::string>& pieces() const { return pieces_; }
  // Shown with the first `tokens` tokens that came.
  std::string Shown(size_t tokens) const {
    std::string text;
    for (size_t i = 0; i < tokens; ++i) text += pieces_[i];
    return text;
  }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace bitshard
