// Takes what a model writes apart: the answer, the reasoning before it, calls of tools.
//
// Chat templates teach models a notation for these; a file output_<dialect>.cc reads one and
// registers itself. Which one a model uses is told by its template's text when it is loaded. One
// parser reads one answer as it comes, on one thread; how the text is cut makes no difference.
// Nothing is lost: every byte of the model's text is in exactly one piece's `raw`, in order, and
// what is not well-formed is answer text as it stands.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/chat_input.h"

namespace bitshard {

struct OutputPiece {
  enum class Kind { kText, kReasoning, kToolCall, kMarkup };
  Kind kind = Kind::kText;
  std::string raw;  // the model's text of this piece: of kText and kReasoning, what is shown

  // Of kToolCall. A call's first piece has its name, all pieces more of its arguments (JSON).
  uint32_t call = 0;  // counts the calls of one answer
  std::string id;     // the model's own; empty: it gave none
  std::string name;   // empty: a further piece
  std::string arguments;
  bool complete = false;  // the last piece of a well-formed call
};

// Collects pieces; neighbours of the same kind, and of the same call, become one.
class OutputPieces {
 public:
  void Text(std::string_view raw) { Add(OutputPiece::Kind::kText, raw); }
  void Reasoning(std::string_view raw) { Add(OutputPiece::Kind::kReasoning, raw); }
  void Markup(std::string_view raw) { Add(OutputPiece::Kind::kMarkup, raw); }
  void BeginCall(std::string_view name, std::string_view id, std::string_view raw);
  // Of the call that was begun last.
  void Arguments(std::string_view arguments, std::string_view raw);
  void EndCall(std::string_view raw);

  // Calls that are complete.
  uint32_t complete_calls() const { return complete_calls_; }
  std::vector<OutputPiece> Take();

 private:
  void Add(OutputPiece::Kind kind, std::string_view raw);
  OutputPiece& CallPiece();

  std::vector<OutputPiece> pieces_;
  uint32_t calls_ = 0;
  uint32_t complete_calls_ = 0;
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // `text`: whole characters.
  virtual void Push(std::string_view text, OutputPieces* out) = 0;
  // The end of the answer: what was held back goes out.
  virtual void Finish(OutputPieces* out) = 0;
};

struct OutputParserOptions {
  std::string_view prompt;  // what the model goes on with; need not outlive Make
  std::shared_ptr<const std::vector<ChatTool>> tools;  // shared with the request; never null
};

struct OutputDialect {
  enum class Part { kReasoning, kToolCalls, kBoth };
  std::string_view name;
  Part part;
  // How well a template's text fits; 0: not at all. The best of a part is taken.
  int (*fit)(std::string_view template_source);
  // Tokens that the parser must see even when control tokens are left out of the text.
  std::vector<std::string_view> markers;
  // A reasoning parser gives the rest to `next`, which may be null: then it is text.
  std::unique_ptr<OutputParser> (*make)(const OutputParserOptions& options,
                                        std::unique_ptr<OutputParser> next);
};

struct RegisterOutputDialect {
  explicit RegisterOutputDialect(OutputDialect dialect);
};

// The dialects of one model. Constant.
class OutputFormat {
 public:
  // By the template's text.
  explicit OutputFormat(std::string_view template_source);

  // Empty when the template defines none.
  std::string_view reasoning_name() const;
  std::string_view tool_call_name() const;
  std::vector<std::string_view> Markers(bool with_tools) const;
  // Null when all of the answer is text: there is no dialect for what the request has.
  std::unique_ptr<OutputParser> Make(const OutputParserOptions& options) const;

 private:
  const OutputDialect* reasoning_;
  const OutputDialect* tool_calls_;  // the same as reasoning_ when it does both
};

}  // namespace bitshard
