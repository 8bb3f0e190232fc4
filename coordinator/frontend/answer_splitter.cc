#include "coordinator/frontend/answer_splitter.h"

#include <utility>

#include "coordinator/engine/sampling.h"
#include "coordinator/frontend/to_proto.h"

namespace bitshard {
namespace {

using Kind = OutputPiece::Kind;

uint64_t Mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  hash = (hash ^ hash >> 29) * 0xBF58476D1CE4E5B9;
  return hash ^ hash >> 32;
}

}  // namespace

AnswerSplitter::AnswerSplitter(const PreparedRequest& prepared, uint32_t choice)
    : parser_(prepared.new_parser ? prepared.new_parser() : nullptr) {
  // The same request gives the same ids, another turn of a conversation others. A choice has those
  // of a request of its own.
  id_seed_ = Mixed(ChoiceSeed(prepared.engine.seed, choice), 0);
  for (const int32_t token : prepared.engine.prompt_tokens)
    id_seed_ = Mixed(id_seed_, static_cast<uint64_t>(token));
  if (!prepared.resumed_text.empty())
    Pieces(prepared.resumed_text, /*end=*/false);  // has been sent
}

std::vector<OutputPiece> AnswerSplitter::Pieces(std::string_view text, bool end) {
  if (parser_ == nullptr) {
    pieces_.Text(text);
  } else {
    parser_->Push(text, &pieces_);
    if (end) parser_->Finish(&pieces_);
  }
  return pieces_.Take();
}

void AnswerSplitter::SetCall(OutputPiece piece, v1::ToolCall* out) const {
  out->set_index(piece.call);
  if (!piece.name.empty()) {
    if (piece.id.empty()) {  // 9 of these is what Mistral's templates insist on
      uint64_t bits = Mixed(id_seed_, piece.call);
      for (int i = 0; i < 9; ++i, bits /= 62) {
        constexpr char kLetters[] =
            "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        piece.id.push_back(kLetters[bits % 62]);
      }
    }
    out->set_id(std::move(piece.id));
    out->set_name(std::move(piece.name));
  }
  if (!piece.arguments.empty()) out->mutable_arguments_json()->append(piece.arguments);
}

void AnswerSplitter::Split(std::string_view text, bool end,
                           std::vector<v1::GenerateResponse>* messages) {
  bool taken = false;  // the last message has its delta
  for (OutputPiece& piece : Pieces(text, end)) {
    const bool nothing = piece.kind == Kind::kToolCall && piece.name.empty() &&
                         piece.arguments.empty();  // its closing markup
    if (piece.kind == Kind::kMarkup || nothing) continue;
    if (std::exchange(taken, true)) {
      v1::GenerateResponse next;
      v1::GenerateResponse& last = messages->back();
      next.set_choice(last.choice());
      next.set_token_index(last.token_index());
      next.set_token_count(last.token_count());
      last.set_token_count(0);
      next.mutable_token_ids()->Swap(last.mutable_token_ids());
      next.mutable_logprobs()->Swap(last.mutable_logprobs());
      messages->push_back(std::move(next));
    }
    v1::GenerateResponse& message = messages->back();
    switch (piece.kind) {
      case Kind::kText:
        message.set_text(std::move(piece.raw));
        break;
      case Kind::kReasoning:
        message.set_reasoning(std::move(piece.raw));
        break;
      default:
        SetCall(std::move(piece), message.mutable_tool_call());
    }
  }
}

void AnswerSplitter::Split(std::string_view text, v1::CompletedChoice* choice) {
  for (OutputPiece& piece : Pieces(text, /*end=*/true)) {
    if (piece.kind == Kind::kText) {
      choice->mutable_text()->append(piece.raw);
    } else if (piece.kind == Kind::kReasoning) {
      choice->mutable_reasoning()->append(piece.raw);
    } else if (piece.kind == Kind::kToolCall && !(piece.name.empty() && piece.arguments.empty())) {
      // Calls come one after the other; the first one may be the rest of one that was resumed.
      const int calls = choice->tool_calls_size();
      const bool is_new = calls == 0 || choice->tool_calls(calls - 1).index() != piece.call;
      SetCall(std::move(piece),
              is_new ? choice->add_tool_calls() : choice->mutable_tool_calls(calls - 1));
    }
  }
}

void AnswerSplitter::Finished(const RequestEnd& end, v1::Finished* out) const {
  SetFinished(end, out);
  if (out->reason() == v1::FINISH_REASON_STOP && end.matched_stop.empty() &&
      pieces_.complete_calls() > 0) {
    out->set_reason(v1::FINISH_REASON_TOOL_CALLS);
  }
}

}  // namespace bitshard
