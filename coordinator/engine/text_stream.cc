#include "coordinator/engine/text_stream.h"

#include <algorithm>
#include <utility>

#include "coordinator/engine/sampling.h"

namespace bitshard {

TextStream::TextStream(const Tokenizer* tokenizer, const GenerateRequest& request)
    : stops_(request.stop),
      end_tokens_(EndTokensOf(request, *tokenizer)),
      include_stop_(request.include_stop),
      min_tokens_(request.min_tokens),
      detokenizer_(tokenizer, request.skip_special_tokens, request.visible_tokens),
      matcher_(request.stop, request.include_stop) {}

TextStream::Piece TextStream::Push(int32_t token, bool last) {
  Piece piece;
  const bool may_end = pushed_++ >= min_tokens_;
  if (may_end && std::binary_search(end_tokens_.begin(), end_tokens_.end(), token)) {
    if (include_stop_) piece.end = Match(detokenizer_.Push(token), piece.text);
    if (piece.end.has_value()) {
      piece.end->matched_token = token;
    } else {
      piece.end = Flush({.reason = FinishReason::kStop,
                         .matched_stop = "",
                         .matched_token = token,
                         .tail_text = ""});
    }
    return piece;
  }
  if (may_end) {
    piece.end = Match(detokenizer_.Push(token), piece.text);
  } else {
    piece.text = detokenizer_.Push(token);
  }
  if (!piece.end.has_value() && last) {
    piece.end = Flush({.reason = FinishReason::kLength,
                       .matched_stop = "",
                       .matched_token = {},
                       .tail_text = ""});
  }
  return piece;
}

TextStream::End TextStream::Stop() {
  return Flush(
      {.reason = FinishReason::kStop, .matched_stop = "", .matched_token = {}, .tail_text = ""});
}

std::optional<TextStream::End> TextStream::Match(const std::string& text, std::string& shown) {
  StopMatcher::Result result = matcher_.Push(text);
  shown += result.emit;
  if (!result.matched.has_value()) return std::nullopt;
  End end;
  end.matched_stop = stops_[*result.matched];
  return end;
}

TextStream::End TextStream::Flush(End end) {
  // The bytes of a character that was cut short become U+FFFD, which a stop string may contain.
  std::string tail;
  if (std::optional<End> stop = Match(detokenizer_.Finish(), tail)) {
    stop->matched_token = end.matched_token;
    end = *std::move(stop);
  } else {
    tail += matcher_.Finish();
  }
  end.tail_text = std::move(tail);
  return end;
}

}  // namespace bitshard
