// One request's way from tokens to text, and to its end: detokenizer, stop strings, end tokens,
// max_tokens.
//
// One object an answer, owned by the engine thread; of a resumed answer it is made where the
// request is read (resume.h). The rules of an end, first that applies:
//   an end token (the model's, unless ignore_eos; or one of the request's stop tokens)   kStop,
//   matched_token a stop string kStop, matched_stop the last token that max_tokens allows kLength
// Of the first min_tokens tokens none ends it, and their text is not searched for stop strings.
// The text of an end token or a stop string is shown only with include_stop. Text that might begin
// a stop string is held back; at an end without one it goes out as tail_text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/engine.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_matcher.h"
#include "coordinator/text/tokenizer.h"

namespace bitshard {

class TextStream {
 public:
  struct End {
    FinishReason reason = FinishReason::kStop;
    std::string matched_stop;
    std::optional<int32_t> matched_token;
    std::string tail_text;
  };
  struct Piece {
    std::string text;        // may be shown now
    std::optional<End> end;  // Push may not be called after it
  };

  // `tokenizer` outlives this object.
  TextStream(const Tokenizer* tokenizer, const GenerateRequest& request);

  // `last`: max_tokens allows no further token.
  Piece Push(int32_t token, bool last);
  // Nothing more can follow, though no token said so: kStop, with the text that was held back.
  End Stop();

 private:
  // Takes `text` through the stop matcher into `shown`; the end, when a stop string matched.
  std::optional<End> Match(const std::string& text, std::string& shown);
  End Flush(End end);

  const std::vector<std::string> stops_;
  const std::vector<int32_t> end_tokens_;  // ascending
  const bool include_stop_;
  const uint32_t min_tokens_;
  uint32_t pushed_ = 0;  // tokens
  IncrementalDetokenizer detokenizer_;
  StopMatcher matcher_;
};

}  // namespace bitshard
