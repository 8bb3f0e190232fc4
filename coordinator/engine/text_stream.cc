#include "coordinator/engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace bitshard {

TextStream::TextStream(const Tokenizer* tokenizer, const GenerateRequest& request)
    : tokenizer_(tokenizer),
      stops_(request.stop),
      stop_token_ids_(request.stop_token_ids),
      include_stop_(request.include_stop),
      ignore_eos_(request.ignore_eos),
      detokenizer_(tokenizer, request.skip_special_tokens),
      matcher_(request.stop, request.include_stop) {
  std::sort(stop_token_ids_.begin(), stop_token_ids_.end());
}

TextStream::Piece TextStream::Push(int32_t token, bool last) {
  Piece piece;
  if (IsEndToken(token)) {
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
  piece.end = Match(detokenizer_.Push(token), piece.text);
  if (!piece.end.has_value() && last) {
    piece.end = Flush({.reason = FinishReason::kLength,
                       .matched_stop = "",
                       .matched_token = {},
                       .tail_text = ""});
  }
  return piece;
}

bool TextStream::IsEndToken(int32_t token) const {
  if (std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), token)) return true;
  const std::vector<int32_t>& eos = tokenizer_->eos_ids();
  return !ignore_eos_ && std::binary_search(eos.begin(), eos.end(), token);
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
