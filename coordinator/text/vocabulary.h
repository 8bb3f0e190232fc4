// The token table: id <-> text as the model's files write it, and the bytes each token stands for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace bitshard {

class Vocabulary {
 public:
  struct Entry {
    bool present = false;  // false: a gap between the ids
    bool special = false;
    std::string text;   // as in the files; byte-level characters for ordinary tokens
    std::string bytes;  // what it decodes to
  };

  // How `bytes` follow from `text`.
  enum class Spelling {
    kByteLevel,  // byte-level characters; text with any other character stands for itself
    kLiteral,    // stands for itself
    kHexByte,    // "<0xNN>": that byte
  };

  // Room for ids below `size`, all gaps. REQUIRES: size <= kMaxSize.
  explicit Vocabulary(int32_t size);
  static constexpr int32_t kMaxSize = 1 << 24;

  // DATA_LOSS when the id is taken by another text, is outside the table, or `text` is no valid
  // UTF-8. A text that has an id already gets a second one; Find keeps the first.
  absl::Status Add(int32_t id, std::string_view text, Spelling spelling);
  // REQUIRES: `id` was added.
  void MarkSpecial(int32_t id);

  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  // Null for gaps and ids outside the table.
  const Entry* Get(int32_t id) const {
    if (id < 0 || id >= size() || !entries_[id].present) return nullptr;
    return &entries_[id];
  }
  std::optional<int32_t> Find(std::string_view text) const;
  // The token written in byte-level characters that stands for `bytes`.
  std::optional<int32_t> FindBytes(std::string_view bytes) const;

 private:
  std::vector<Entry> entries_;
  absl::flat_hash_map<std::string, int32_t> by_text_;
  absl::flat_hash_map<std::string, int32_t> by_bytes_;
};

}  // namespace bitshard
