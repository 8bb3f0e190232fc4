#include "coordinator/checkpoint/name_pattern.h"

#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "pcre2.h"

namespace bitshard {
namespace {

// Names have a hundred characters; honest patterns need a few steps for each.
constexpr uint32_t kMatchLimit = 100'000;
constexpr uint32_t kHeapLimitKib = 1024;

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

}  // namespace

void NamePattern::FreeCode::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

absl::StatusOr<NamePattern> NamePattern::Create(std::string_view text, const std::string& where) {
  const std::string_view regex = text.substr(IsRegex(text) ? 3 : 0);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                          PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                          /*ccontext=*/nullptr));
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": the pattern '", std::string(text),
                                                   "' does not compile at offset ", offset, ": ",
                                                   ErrorText(error)));
  }
  return NamePattern(std::string(text), where, std::move(code));
}

absl::StatusOr<bool> NamePattern::Matches(std::string_view name) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  if (match == nullptr || context == nullptr)
    return absl::ResourceExhaustedError("out of memory while matching names");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const int rc = pcre2_match(static_cast<const pcre2_code*>(code_.get()),
                             reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                             match.get(), context.get());
  if (rc >= 0) return true;
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  return absl::InvalidArgumentError(absl::StrCat(where_, ": matching the pattern '", text_,
                                                 "' with '", std::string(name),
                                                 "' failed: ", ErrorText(rc)));
}

}  // namespace bitshard
