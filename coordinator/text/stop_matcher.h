// Finds a request's stop strings in streamed text, however the text is cut into pieces.
//
// One object a sequence, owned and called by one thread. Text that could be the beginning of a stop
// string is held back, so that no piece of a stop string is ever shown, and nothing after one.
// Where several stops match, the one that ends first wins; of those that end at the same byte, the
// longest (it starts first). Aho-Corasick: the cost of a byte does not depend on the number of
// stops. With valid UTF-8 in stops and text, what is emitted is valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/byte_trie.h"

namespace bitshard {

class StopMatcher {
 public:
  struct Result {
    std::string emit;            // text that may be shown now
    std::optional<int> matched;  // index into `stops`; from then on the stream is over
  };

  // Empty stop strings are ignored (the others keep their index). `include_stop`: the matched stop
  // string is emitted.
  StopMatcher(const std::vector<std::string>& stops, bool include_stop);

  // After a match every further Push gives no text and the same `matched`.
  Result Push(std::string_view text);

  // The end of the stream without a stop: the text held back. Empty after a match.
  std::string Finish();

  // Bytes held back now; always fewer than the longest stop string has.
  size_t held_bytes() const { return held_.size(); }

 private:
  // A prefix of some stop strings.
  struct Node {
    ByteTrie::NodeId fail = ByteTrie::kRoot;  // its longest proper suffix that is a prefix too
    int32_t bytes = 0;                        // its length
    std::optional<int> stop;                  // the longest stop string that it ends with
    int32_t stop_bytes = 0;
  };
  ByteTrie::NodeId Step(ByteTrie::NodeId node, unsigned char byte) const;

  bool include_stop_;
  ByteTrie trie_;
  std::vector<Node> nodes_;  // by trie node
  ByteTrie::NodeId node_ = ByteTrie::kRoot;
  std::string held_;  // the text of node_: nodes_[node_].bytes bytes
  std::optional<int> matched_;
};

}  // namespace bitshard
