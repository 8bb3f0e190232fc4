#include "coordinator/text/detokenizer.h"

#include "coordinator/text/utf8.h"

namespace bitshard {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string IncrementalDetokenizer::Push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(id)) return text;
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
