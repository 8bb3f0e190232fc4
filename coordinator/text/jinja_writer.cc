#include "coordinator/text/jinja_writer.h"

#include "kernels/base/status_macros.h"

namespace bitshard {

absl::Status JinjaWriter::Append(std::string_view own) {
  RETURN_IF_ERROR(heap_.ChargeBytes(own.size()));
  text_.Append(own);
  return absl::OkStatus();
}

absl::Status JinjaWriter::Append(const JinjaText& text, size_t begin, size_t bytes) {
  RETURN_IF_ERROR(heap_.ChargeBytes(text.CostOf(begin, bytes)));
  text_.Append(text, begin, bytes);
  return absl::OkStatus();
}

absl::Status JinjaWriter::AppendTimes(const JinjaText& text, uint64_t times) {
  if (text.size() == 0) return absl::OkStatus();
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(times, text.cost(), &bytes)) {
    return absl::ResourceExhaustedError("a repetition is too long");
  }
  RETURN_IF_ERROR(heap_.ChargeBytes(bytes));
  for (uint64_t i = 0; i < times; ++i) text_.Append(text, 0, text.size());
  return absl::OkStatus();
}

absl::Status JinjaWriter::AppendInPlaceOf(const JinjaText& from, size_t at,
                                          std::string_view replacement) {
  RETURN_IF_ERROR(heap_.ChargeBytes(replacement.size() + sizeof(TextSpan)));
  text_.AppendInPlaceOf(from, at, replacement);
  return absl::OkStatus();
}

}  // namespace bitshard
