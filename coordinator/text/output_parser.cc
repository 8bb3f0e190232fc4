#include "coordinator/text/output_parser.h"

#include <utility>

namespace bitshard {
namespace {

using Kind = OutputPiece::Kind;
using Part = OutputDialect::Part;

std::vector<OutputDialect>& Dialects() {
  static auto& dialects = *new std::vector<OutputDialect>;
  return dialects;
}

const OutputDialect* Best(std::string_view template_source, Part part) {
  const OutputDialect* best = nullptr;
  int best_fit = 0;
  for (const OutputDialect& dialect : Dialects()) {
    if (dialect.part != part && dialect.part != Part::kBoth) continue;
    const int fit = dialect.fit(template_source);
    const bool better = fit > best_fit || (fit > 0 && fit == best_fit && dialect.name < best->name);
    if (!better) continue;
    best = &dialect;
    best_fit = fit;
  }
  return best;
}

}  // namespace

RegisterOutputDialect::RegisterOutputDialect(OutputDialect dialect) {
  Dialects().push_back(std::move(dialect));
}

void OutputPieces::Add(Kind kind, std::string_view raw) {
  if (raw.empty()) return;
  if (pieces_.empty() || pieces_.back().kind != kind) pieces_.emplace_back().kind = kind;
  pieces_.back().raw += raw;
}

OutputPiece& OutputPieces::CallPiece() {
  const bool same = !pieces_.empty() && pieces_.back().kind == Kind::kToolCall &&
                    pieces_.back().call + 1 == calls_;
  if (!same) {
    OutputPiece& piece = pieces_.emplace_back();
    piece.kind = Kind::kToolCall;
    piece.call = calls_ - 1;
  }
  return pieces_.back();
}

void OutputPieces::BeginCall(std::string_view name, std::string_view id, std::string_view raw) {
  ++calls_;
  OutputPiece& piece = CallPiece();
  piece.name = name;
  piece.id = id;
  piece.raw = raw;
}

void OutputPieces::Arguments(std::string_view arguments, std::string_view raw) {
  OutputPiece& piece = CallPiece();
  piece.arguments += arguments;
  piece.raw += raw;
}

void OutputPieces::EndCall(std::string_view raw) {
  OutputPiece& piece = CallPiece();
  piece.raw += raw;
  piece.complete = true;
  ++complete_calls_;
}

std::vector<OutputPiece> OutputPieces::Take() { return std::exchange(pieces_, {}); }

OutputFormat::OutputFormat(std::string_view template_source)
    : reasoning_(Best(template_source, Part::kReasoning)),
      tool_calls_(Best(template_source, Part::kToolCalls)) {
  // One that does both needs the whole text.
  if (reasoning_ != nullptr && reasoning_->part == Part::kBoth) tool_calls_ = reasoning_;
  if (tool_calls_ != nullptr && tool_calls_->part == Part::kBoth) reasoning_ = tool_calls_;
}

std::string_view OutputFormat::reasoning_name() const {
  return reasoning_ == nullptr ? std::string_view() : reasoning_->name;
}

std::string_view OutputFormat::tool_call_name() const {
  return tool_calls_ == nullptr ? std::string_view() : tool_calls_->name;
}

std::vector<std::string_view> OutputFormat::Markers(bool with_tools) const {
  std::vector<std::string_view> markers;
  if (reasoning_ != nullptr) markers = reasoning_->markers;
  if (with_tools && tool_calls_ != nullptr && tool_calls_ != reasoning_) {
    markers.insert(markers.end(), tool_calls_->markers.begin(), tool_calls_->markers.end());
  }
  return markers;
}

std::unique_ptr<OutputParser> OutputFormat::Make(const OutputParserOptions& options) const {
  std::unique_ptr<OutputParser> parser;
  if (tool_calls_ != nullptr && tool_calls_ != reasoning_ && !options.tools->empty()) {
    parser = tool_calls_->make(options, nullptr);
  }
  if (reasoning_ != nullptr) parser = reasoning_->make(options, std::move(parser));
  return parser;
}

}  // namespace bitshard
