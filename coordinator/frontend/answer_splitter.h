// An answer's text as the API's deltas: text, reasoning, calls of tools.
//
// One object a choice, of whoever writes it. Without a parser all is text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/engine/engine.h"
#include "coordinator/frontend/prepare_request.h"
#include "coordinator/text/output_parser.h"
#include "proto/inference.pb.h"

namespace bitshard {

class AnswerSplitter {
 public:
  // `choice`: which of the request's. `prepared` need not outlive this object. Of a resumed answer
  // what comes after prepared.resumed_text is split.
  AnswerSplitter(const PreparedRequest& prepared, uint32_t choice);

  // Puts further text into the last of `messages`, and as many more as it takes behind it; they
  // belong to the same choice, and the last of them takes the tokens over. With `end`, nothing
  // follows. REQUIRES: the last message has no delta, choice and tokens are set.
  void Split(std::string_view text, bool end, std::vector<v1::GenerateResponse>* messages);
  // The same for a whole answer; after it only Finished is called.
  void Split(std::string_view text, v1::CompletedChoice* choice);
  // As SetFinished, which does not know of calls. REQUIRES: end.status is OK, all text was split.
  void Finished(const RequestEnd& end, v1::Finished* out) const;

 private:
  std::vector<OutputPiece> Pieces(std::string_view text, bool end);
  void SetCall(OutputPiece piece, v1::ToolCall* out) const;

  const std::unique_ptr<OutputParser> parser_;  // may be null
  OutputPieces pieces_;
  uint64_t id_seed_;  // of calls
};

}  // namespace bitshard
