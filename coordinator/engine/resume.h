// A resumed request's way back to where its answer stopped.
//
// Tokens are all that a caller brings along; the text that was shown for them, the stop strings
// that they have begun and the place in the grammar follow from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "coordinator/engine/engine.h"
#include "coordinator/engine/text_stream.h"

namespace bitshard {

// INVALID_ARGUMENT naming token `index` of GenerateRequest::resumed.
absl::Status ResumedTokenError(size_t index, absl::string_view description);

struct ResumedAnswer {
  TextStream stream;                   // after the last token
  std::optional<TextStream::End> end;  // of the answer, if the last token was its end
};

// Takes a stream of the request through request.resumed, tens of milliseconds for 100,000 tokens.
// `text`, unless null, is what was shown for them. INVALID_ARGUMENT when an earlier token than the
// last one ends the answer. `tokenizer` outlives the result.
absl::StatusOr<ResumedAnswer> ReplayResumed(const GenerateRequest& request,
                                            const Tokenizer* tokenizer, std::string* text);

// OK unless the request's allowed_tokens or min_tokens refuse one of request.resumed; else
// INVALID_ARGUMENT naming the first of these. A grammar is asked later, off this thread: following
// it may take long (mask_job.h).
absl::Status CheckResumedAllowed(const GenerateRequest& request, const Tokenizer& tokenizer);

}  // namespace bitshard
