#include "coordinator/text/normalizer.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "unicode/bytestream.h"
#include "unicode/normalizer2.h"
#include "unicode/stringpiece.h"

#include "coordinator/text/concat.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

const icu::Normalizer2* InstanceOf(UnicodeForm form, UErrorCode& error) {
  switch (form) {
    case UnicodeForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case UnicodeForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case UnicodeForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case UnicodeForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

bool IsAscii(std::string_view text) {
  for (char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

absl::StatusOr<std::string> Normalize(UnicodeForm form, std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* instance = InstanceOf(form, error);
  std::string out;
  out.reserve(text.size());
  icu::StringByteSink<std::string> sink(&out);
  if (U_SUCCESS(error)) {
    instance->normalizeUTF8(/*options=*/0,
                            icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                            /*edits=*/nullptr, error);
  }
  if (U_FAILURE(error)) {
    return absl::InternalError(Concat("tokenizer: ICU normalizer: ", u_errorName(error)));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string_view> Normalizer::Apply(std::string_view text,
                                                   std::string* storage) const {
  if (identity() || IsAscii(text)) return text;  // all four forms keep ASCII
  if (text.size() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError("tokenizer: text above 2 GiB cannot be normalized");
  }
  for (UnicodeForm form : forms_) {
    ASSIGN_OR_RETURN(std::string next, Normalize(form, text));
    *storage = std::move(next);
    text = *storage;
  }
  return text;
}

}  // namespace bitshard
