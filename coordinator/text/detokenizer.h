// Turns one sequence's tokens into text as they come, never cutting a character in two.
//
// One object a sequence, owned and called by one thread. It outlives neither its tokenizer nor its
// sequence. Invariant: all deltas since construction, followed by Finish(), are Tokenizer::Decode
// of all the ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/text/tokenizer.h"

namespace bitshard {

class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this object. `visible`: special tokens that are not skipped.
  explicit IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special = true,
                                  std::vector<int32_t> visible = {});

  // The text that `id` completes: valid UTF-8, empty while a character's bytes are still incomplete
  // (at most 3 bytes are held back). Bytes that can no longer become a character are U+FFFD at
  // once.
  std::string Push(int32_t id);

  // The end of the sequence: what is still held back becomes U+FFFD. Push may not be called after
  // it.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  const std::vector<int32_t> visible_;  // a few
  std::string pending_;  // a proper prefix of one well-formed character; empty most of the time
};

}  // namespace bitshard
