// Byte-level byte-pair encoding: a piece of text starts as its bytes, then the adjacent pair with
// the lowest rank is merged, again and again (the leftmost on ties), until no pair has a rank. O(n
// log n) in the length of the piece.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "coordinator/text/vocabulary.h"

namespace bitshard {

class ByteBpe {
 public:
  // Merges in order of rank, both halves in byte-level characters. `whole_pieces` (ignore_merges):
  // a piece that is in the vocabulary is that token, whatever the merges say. DATA_LOSS when a half
  // or a result is not in `vocabulary`, which must outlive this object.
  static absl::StatusOr<ByteBpe> Create(
      const Vocabulary* vocabulary,
      const std::vector<std::pair<std::string_view, std::string_view>>& merges, bool whole_pieces);

  // Appends the ids of `piece`. A byte that the vocabulary lacks gives nothing, as in other
  // programs (some vocabularies lack bytes that valid UTF-8 never has).
  void Encode(std::string_view piece, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* Find(int32_t left, int32_t right) const {
    auto it = merges_.find(Key(left, right));
    return it == merges_.end() ? nullptr : &it->second;
  }
  void EncodeShort(std::vector<int32_t>* symbols) const;
  void EncodeLong(std::vector<int32_t>* symbols) const;

  const Vocabulary* vocabulary_ = nullptr;
  bool whole_pieces_ = false;
  std::array<std::optional<int32_t>, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace bitshard
