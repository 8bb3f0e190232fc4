#include "coordinator/text/regex_splitter.h"

#include <cstddef>
#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include "pcre2.h"

#include "coordinator/text/concat.h"

namespace bitshard {
namespace {

// Steps of the matcher for one piece of text. The patterns of real tokenizers need a few per
// character of a piece; a piece of 100,000 characters still fits, while exponential backtracking
// ends in well under a second.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// PCRE2's \s also takes U+180E, which is no white space any more; the tokenizers that these
// patterns come from mean Unicode's White_Space. Rewrites \s everywhere and \S outside of brackets.
std::string WithUnicodeSpaces(std::string_view regex) {
  constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c != '\\' || i + 1 == regex.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = regex[++i];
    if (escaped == 's') {
      out += in_class ? std::string(kSpaces) : Concat("[", kSpaces, "]");
    } else if (escaped == 'S' && !in_class) {
      out += Concat("[^", kSpaces, "]");
    } else {
      out += c;
      out += escaped;
    }
  }
  return out;
}

}  // namespace

void RegexSplitter::FreeCode::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

absl::StatusOr<RegexSplitter> RegexSplitter::Compile(std::string_view regex) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string pattern = WithUnicodeSpaces(regex);
  // \C would cut characters in two.
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                   /*ccontext=*/nullptr);
  if (code == nullptr) {
    return absl::DataLossError(Concat("tokenizer: the split pattern '", regex,
                                      "' does not compile at offset ", offset, ": ",
                                      ErrorText(error)));
  }
  return RegexSplitter(Code(code), std::string(regex));
}

absl::Status RegexSplitter::Split(std::string_view text, bool keep_matches, bool keep_gaps,
                                  std::vector<std::string_view>* pieces) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  if (match == nullptr || context == nullptr) {
    return absl::ResourceExhaustedError("tokenizer: out of memory while splitting text");
  }
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);

  const auto put = [&](bool keep, size_t begin, size_t end) {
    if (keep && end > begin) pieces->push_back(text.substr(begin, end - begin));
  };
  size_t done = 0;  // everything before it is in `pieces`
  size_t from = 0;
  while (from < text.size()) {
    // The caller has validated the text once; checking it at each call would be quadratic.
    const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                               PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::InvalidArgumentError(
          Concat("tokenizer: splitting the text at byte ", from, " with the pattern '", regex_,
                 "' failed: ", ErrorText(rc), "; send shorter runs of the same character"));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[0] < from || range[1] <= range[0]) {  // \K can do that
      return absl::InvalidArgumentError(
          Concat("tokenizer: the split pattern '", regex_, "' moves its match backwards"));
    }
    put(keep_gaps, done, range[0]);
    put(keep_matches, range[0], range[1]);
    done = from = range[1];
  }
  put(keep_gaps, done, text.size());
  return absl::OkStatus();
}

}  // namespace bitshard
