#include "coordinator/text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "coordinator/text/utf8.h"

namespace bitshard {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special,
                                               std::vector<int32_t> visible)
    : tokenizer_(tokenizer), skip_special_(skip_special), visible_(std::move(visible)) {}

std::string IncrementalDetokenizer::Push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(id) &&
      std::find(visible_.begin(), visible_.end(), id) == visible_.end()) {
    return text;
  }
  pending_ += tokenizer_->TokenBytes(id);
  const size_t kept = AppendUtf8Lossy(pending_, /*keep_incomplete_tail=*/true, &text);
  pending_.erase(0, pending_.size() - kept);
  return text;
}

std::string IncrementalDetokenizer::Finish() {
  std::string text;
  AppendUtf8Lossy(pending_, /*keep_incomplete_tail=*/false, &text);
  pending_.clear();
  return text;
}

}  // namespace bitshard
