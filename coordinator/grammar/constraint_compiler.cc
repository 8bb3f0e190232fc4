#include "coordinator/grammar/constraint_compiler.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <xgrammar/xgrammar.h>

#include "coordinator/grammar/grammar_memory.h"
#include "coordinator/grammar/utf8_filter.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"
#include "proto/token_mask.h"

namespace bitshard {
namespace {

// What the library warns of on this thread; null = nobody asks.
thread_local std::vector<std::string>* warnings = nullptr;

// Blanks between two parts of a JSON text. A model that only writes blanks would never end.
constexpr int kMaxJsonBlanks = 20;

class Matcher final : public TokenMatcher {
 public:
  // Without a `size` it is not one of those that follow the grammar.
  Matcher(const xgrammar::CompiledGrammar& grammar, std::shared_ptr<const Utf8Filter> utf8,
          bool end_tokens, std::shared_ptr<GrammarSize> size)
      : matcher_(grammar, /*override_stop_tokens=*/std::nullopt,
                 /*terminate_without_stop_token=*/!end_tokens),
        vocabulary_(grammar.GetTokenizerInfo()),
        utf8_(std::move(utf8)),
        size_(std::move(size)),
        words_(TokenMaskBytes(vocab_size()) / sizeof(uint32_t)) {
    if (size_ != nullptr) size_->Join();
  }
  ~Matcher() override {
    if (size_ != nullptr) size_->Leave();
  }

  bool AcceptToken(int32_t token) override {
    const std::vector<std::string>& tokens = vocabulary_.GetDecodedVocab();
    const bool known = token >= 0 && static_cast<size_t>(token) < tokens.size();
    const std::string text = known ? tokens[static_cast<size_t>(token)] : "";
    if (!text.empty() && !Utf8Filter::Allows(last_bytes_.back(), static_cast<uint8_t>(text[0])))
      return false;
    try {
      if (!matcher_.AcceptToken(token)) return false;
    } catch (const std::exception&) {
      return false;
    }
    last_bytes_.push_back(text.empty() ? 0 : static_cast<uint8_t>(text.back()));
    return true;
  }

  bool FillMask(std::string* mask) override {
    DLTensor tensor = {};
    int64_t shape[1] = {static_cast<int64_t>(words_.size())};
    tensor.data = words_.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = shape;
    try {
      matcher_.FillNextTokenBitmask(&tensor);
    } catch (const std::exception&) {
      std::fill(words_.begin(), words_.end(), 0);  // nothing may follow: the request ends
    }
    if (size_ != nullptr) size_->Filled();
    utf8_->Apply(last_bytes_.back(), &words_);
    for (uint32_t bit = vocab_size(); bit < words_.size() * 32; ++bit)
      words_[bit / 32] &= ~(1u << (bit % 32));
    mask->assign(reinterpret_cast<const char*>(words_.data()), words_.size() * sizeof(uint32_t));
    for (const int token : matcher_.GetStopTokenIds()) words_[token / 32] &= ~(1u << (token % 32));
    return std::any_of(words_.begin(), words_.end(), [](uint32_t word) { return word != 0; });
  }

  bool IsTerminated() const override { return matcher_.IsCompleted(); }

  void Rollback(uint32_t tokens) override {
    matcher_.Rollback(static_cast<int>(tokens));
    last_bytes_.erase(last_bytes_.end() - tokens, last_bytes_.end());
  }

 private:
  uint32_t vocab_size() const { return static_cast<uint32_t>(vocabulary_.GetVocabSize()); }

  xgrammar::GrammarMatcher matcher_;
  const xgrammar::TokenizerInfo vocabulary_;
  const std::shared_ptr<const Utf8Filter> utf8_;  // of the compiler, which may end first
  const std::shared_ptr<GrammarSize> size_;       // the grammar's; it may end first, too
  std::vector<uint32_t> words_;
  std::vector<uint8_t> last_bytes_ = {0};  // before the first token, and after each
};

class Compiled final : public CompiledGrammar {
 public:
  Compiled(xgrammar::CompiledGrammar grammar, std::shared_ptr<const Utf8Filter> utf8,
           std::shared_ptr<GrammarMemory> memory)
      : grammar_(std::move(grammar)), utf8_(std::move(utf8)) {
    for (const bool end_tokens : {false, true}) {
      Matcher matcher(grammar_, utf8_, end_tokens, /*size=*/nullptr);
      can_begin_ = matcher.FillMask(&first_masks_[end_tokens]);
    }
    size_ = std::make_shared<GrammarSize>(
        std::move(memory), [grammar = grammar_] { return grammar.MemorySizeBytes(); });
  }

  std::unique_ptr<TokenMatcher> NewMatcher(bool end_tokens) const override {
    return std::make_unique<Matcher>(grammar_, utf8_, end_tokens, size_);
  }
  const std::string& FirstMask(bool end_tokens) const override { return first_masks_[end_tokens]; }
  uint64_t MemoryBytes() const override { return size_->bytes(); }
  bool TooLarge() const override { return size_->TooLarge(); }
  bool can_begin() const { return can_begin_; }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const std::shared_ptr<const Utf8Filter> utf8_;
  std::shared_ptr<GrammarSize> size_;  // shared with those that follow it
  std::string first_masks_[2];         // without and with end tokens
  bool can_begin_ = false;
};

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      // Of exactly four digits; "\\x" would take in letters that follow.
      absl::StrAppend(&out, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// The library lets strings of bounded length hold raw control characters, which JSON does not. Its
// own text of the grammar, mended, and read again.
xgrammar::Grammar JsonGrammar(const std::string& schema) {
  const xgrammar::Grammar grammar =
      xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                        /*strict_mode=*/true, kMaxJsonBlanks);
  std::string text = grammar.ToString();
  const int mended = absl::StrReplaceAll(
      {{R"(_characters ::= (([^\"\\\r\n])))", R"(_characters ::= (([^\x00-\x1f\"\\])))"}}, &text);
  return mended == 0 ? grammar : xgrammar::Grammar::FromEBNF(text, "root");
}

xgrammar::CompiledGrammar CompileWith(xgrammar::GrammarCompiler compiler,
                                      const Constraint& constraint) {
  switch (constraint.kind) {
    case Constraint::Kind::kJsonSchema:
      return compiler.CompileGrammar(JsonGrammar(constraint.text));
    case Constraint::Kind::kRegex:
      return compiler.CompileRegex(constraint.text);
    case Constraint::Kind::kGrammar:
      return compiler.CompileGrammar(constraint.text, "root");
    case Constraint::Kind::kChoice:
      break;
  }
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < constraint.options.size(); ++i)
    absl::StrAppend(&grammar, i == 0 ? "" : " | ", Quoted(constraint.options[i]));
  return compiler.CompileGrammar(grammar, "root");
}

// The library's own words, in one line of bearable length.
std::string Words(absl::string_view text) {
  std::string line = absl::CHexEscape(text.substr(0, 400));
  while (absl::EndsWith(line, "\\n")) line.resize(line.size() - 2);
  return line;
}

}  // namespace

struct ConstraintCompiler::Impl {
  Impl(VocabularyBytes vocabulary, const GrammarMemory::Limits& limits)
      : memory(std::make_shared<GrammarMemory>(limits)),
        utf8(std::make_shared<const Utf8Filter>(vocabulary.vocab_size, &vocabulary.tokens)),
        compiler(
            xgrammar::TokenizerInfo(vocabulary.tokens, xgrammar::VocabType::RAW,
                                    static_cast<int>(vocabulary.vocab_size), vocabulary.end_tokens),
            /*max_threads=*/1, /*cache_enabled=*/false, /*max_memory_bytes=*/-1,
            /*enable_dynamic_compilation=*/true) {}

  const std::shared_ptr<GrammarMemory> memory;  // shared with the grammars
  const std::shared_ptr<const Utf8Filter> utf8;
  xgrammar::GrammarCompiler compiler;
};

ConstraintCompiler::ConstraintCompiler(const VocabularyBytes& vocabulary,
                                       const GrammarMemory::Limits& limits)
    : impl_(std::make_unique<Impl>(vocabulary, limits)) {}

ConstraintCompiler::~ConstraintCompiler() = default;

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> ConstraintCompiler::Compile(
    const Constraint& constraint) const {
  RETURN_IF_ERROR(CheckConstraint(constraint));
  std::vector<std::string> heard;
  warnings = &heard;
  std::shared_ptr<const Compiled> compiled;
  std::string error;
  bool out_of_memory = false;
  try {
    compiled = std::make_shared<const Compiled>(CompileWith(impl_->compiler, constraint),
                                                impl_->utf8, impl_->memory);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  } catch (const std::exception& e) {
    error = absl::StrCat("does not compile: ", Words(e.what()));
  }
  warnings = nullptr;
  if (out_of_memory) {
    return WithBadField(absl::ResourceExhaustedError(absl::StrCat(
                            constraint.Field(), ": out of memory while it was compiled")),
                        constraint.Field(), "out of memory while it was compiled");
  }
  if (!error.empty()) return BadFieldError(constraint.Field(), error);
  if (!heard.empty()) {
    return BadFieldError(constraint.Field(),
                         absl::StrCat("asks for what cannot be kept: ", Words(heard.front())));
  }
  if (!compiled->can_begin()) {
    return BadFieldError(constraint.Field(),
                         "allows no text but the empty one with the tokens of this model");
  }
  return compiled;
}

}  // namespace bitshard

// xgrammar calls these (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (bitshard::warnings != nullptr && level >= kWarning && bitshard::warnings->size() < 16)
    bitshard::warnings->push_back(message);
}

}  // namespace xgrammar
