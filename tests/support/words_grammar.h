// A grammar of a few words over the byte tokenizer, without any library: what the engine does with
// masks can be foretold.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/grammar/token_matcher.h"
#include "proto/token_mask.h"
#include "tests/support/byte_tokenizer.h"

namespace bitshard {

class WordsMatcher : public TokenMatcher {
 public:
  WordsMatcher(std::vector<std::string> words, bool end_tokens)
      : words_(std::move(words)), end_tokens_(end_tokens) {}

  bool AcceptToken(int32_t token) override {
    std::string mask;
    FillMask(&mask);
    if (!MaskAllows(mask, static_cast<uint32_t>(token))) return false;
    if (token != kByteTokenizerEos) text_ += static_cast<char>(token);
    return true;
  }
  bool FillMask(std::string* mask) override {
    *mask = MakeTokenMask(kByteTokenizerVocab, false);
    for (const std::string& word : words_) {
      if (word.size() <= text_.size() || word.compare(0, text_.size(), text_) != 0) continue;
      // A word may go on with what no token stands for.
      if (word[text_.size()] == kNoToken) continue;
      AllowToken(static_cast<unsigned char>(word[text_.size()]), mask);
    }
    if (end_tokens_ && IsTerminated()) AllowToken(kByteTokenizerEos, mask);
    for (uint32_t token = 0; token < kByteTokenizerEos; ++token)
      if (MaskAllows(*mask, token)) return true;
    return false;
  }
  bool IsTerminated() const override {
    for (const std::string& word : words_)
      if (word == text_) return true;
    return false;
  }
  void Rollback(uint32_t tokens) override { text_.resize(text_.size() - tokens); }

  static constexpr char kNoToken = '\0';

 private:
  const std::vector<std::string> words_;
  const bool end_tokens_;
  std::string text_;
};

class WordsGrammar : public CompiledGrammar {
 public:
  explicit WordsGrammar(std::vector<std::string> words) : words_(std::move(words)) {
    for (const bool end_tokens : {false, true})
      NewMatcher(end_tokens)->FillMask(&first_[end_tokens ? 1 : 0]);
  }
  std::unique_ptr<TokenMatcher> NewMatcher(bool end_tokens) const override {
    return std::make_unique<WordsMatcher>(words_, end_tokens);
  }
  const std::string& FirstMask(bool end_tokens) const override {
    return first_[end_tokens ? 1 : 0];
  }
  uint64_t MemoryBytes() const override { return 1; }

 private:
  const std::vector<std::string> words_;
  std::string first_[2];
};

}  // namespace bitshard
