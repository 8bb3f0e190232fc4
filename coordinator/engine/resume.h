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
  std::string text;                    // that was shown for the tokens
  std::optional<TextStream::End> end;  // of the answer, if the last token was its end
};

// Brings `stream`, a new one of the request, to the end of request.resumed. INVALID_ARGUMENT when
// an earlier token than the last one ends the answer.
absl::StatusOr<ResumedAnswer> ReplayResumed(const GenerateRequest& request, TextStream* stream);

// OK unless the request's allowed_tokens or min_tokens refuse one of request.resumed; else
// INVALID_ARGUMENT naming the first of these. A grammar is asked later, off this thread: following
// it may take long (mask_job.h).
absl::Status CheckResumedAllowed(const GenerateRequest& request, const Tokenizer& tokenizer);

}  // namespace bitshard
