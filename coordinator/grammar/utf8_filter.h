// Keeps texts valid UTF-8 where a grammar does not.
//
// "Any character" is, to xgrammar, also one of the code points that UTF-8 has no form for
// (surrogates and the like); written all the same their bytes would reach the caller as U+FFFD,
// three for one. A byte is wrong only after certain first bytes, so that one look back is enough.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bitshard {

class Utf8Filter {
 public:
  // By token id; tokens that are never part of a valid text become empty.
  Utf8Filter(uint32_t vocab_size, std::vector<std::string>* tokens);

  // Whether `next` may follow `last`.
  static bool Allows(uint8_t last, uint8_t next);
  // Forbids the tokens that cannot follow `last`, the last byte so far. `words`: a token mask.
  void Apply(uint8_t last, std::vector<uint32_t>* words) const;

 private:
  absl::flat_hash_map<uint8_t, std::vector<uint32_t>> allowed_;  // masks by last byte; others: all
};

}  // namespace bitshard
