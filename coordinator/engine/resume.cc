#include "coordinator/engine/resume.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/sampling.h"
#include "proto/status_details.h"
#include "proto/token_mask.h"

namespace bitshard {

absl::Status ResumedTokenError(size_t index, absl::string_view description) {
  return BadFieldError(absl::StrCat("resume.output_ids[", index, "]"), description);
}

absl::StatusOr<ResumedAnswer> ReplayResumed(const GenerateRequest& request,
                                            const Tokenizer* tokenizer, std::string* text) {
  ResumedAnswer answer = {.stream = TextStream(tokenizer, request), .end = {}};
  const size_t count = request.resumed.size();
  for (size_t i = 0; i < count; ++i) {
    TextStream::Piece piece =
        answer.stream.Push(request.resumed[i], /*last=*/i + 1 == request.max_tokens);
    if (text != nullptr) *text += piece.text;
    if (!piece.end.has_value()) continue;
    if (i + 1 == count) {
      answer.end = std::move(piece.end);
      break;
    }
    const TextStream::End& end = *piece.end;
    std::string why = "an end token";
    if (!end.matched_stop.empty()) why = "a stop string";
    if (end.reason == FinishReason::kLength) why = "max_tokens";
    return ResumedTokenError(
        i + 1, absl::StrCat("comes after the end of the answer: token ", i, " ended it by ", why,
                            "; send the ids as they came, with the stop and max_tokens of the "
                            "first request"));
  }
  return answer;
}

absl::Status CheckResumedAllowed(const GenerateRequest& request, const Tokenizer& tokenizer) {
  const std::vector<int32_t> end_tokens =
      request.min_tokens > 0 ? EndTokensOf(request, tokenizer) : std::vector<int32_t>();
  for (size_t i = 0; i < request.resumed.size(); ++i) {
    const int32_t token = request.resumed[i];
    if (!request.allowed_tokens.empty() &&
        !MaskAllows(request.allowed_tokens, static_cast<uint32_t>(token))) {
      return ResumedTokenError(i, absl::StrCat("token ", token,
                                               " is not one that sampling.allowed_token_ids and "
                                               "banned_token_ids leave; send the first request's"));
    }
    if (i < request.min_tokens && std::binary_search(end_tokens.begin(), end_tokens.end(), token)) {
      return ResumedTokenError(i, absl::StrCat("token ", token, " ends an answer, and among the ",
                                               "first stop.min_tokens (", request.min_tokens,
                                               ") there is none; send the first request's"));
    }
  }
  return absl::OkStatus();
}

}  // namespace bitshard
