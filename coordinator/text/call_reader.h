// One call of a tool, read byte by byte behind the marker that opens it, and the answer text around
// calls: what the dialects of tool calls have in common.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/json_scanner.h"
#include "coordinator/text/output_parser.h"

namespace bitshard {

// A section: from behind its opening marker to its end.
class CallReader {
 public:
  enum class State { kMore, kDone, kBad };
  virtual ~CallReader() = default;
  // After another result than kMore the reader is over.
  virtual State Push(char c, OutputPieces* out) = 0;
  // The answer ends here: kDone when nothing is missing but closing markers.
  virtual State Finish(OutputPieces* out) = 0;
  // The end of Push's text: what need not wait goes out.
  virtual void Flush(OutputPieces*) {}

  // What has been read and is in no piece yet; the opening marker comes first.
  std::string& unread() { return unread_; }

 protected:
  std::string unread_;
};

// {"name": ..., "arguments": {...}}, members in any order, others allowed; "parameters" is
// "arguments". Arguments are streamed once the name is known.
class JsonCall {
 public:
  // With `tools` only their names are taken. Both pointers outlive this object; `tools` may be
  // null. `unread` is the section's.
  JsonCall(const std::vector<ChatTool>* tools, std::string* unread)
      : tools_(tools), unread_(unread) {}

  CallReader::State Push(char c, OutputPieces* out);
  void Flush(OutputPieces* out);

 private:
  enum class At { kOpen, kKey, kKeyOrEnd, kInKey, kColon, kValue, kInValue, kCommaOrEnd };

  CallReader::State ValueEnded(OutputPieces* out);
  CallReader::State End(OutputPieces* out);
  bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }
  bool TakesName(const std::string& name) const;
  void Begin(std::string_view arguments, OutputPieces* out);

  const std::vector<ChatTool>* tools_;
  std::string* unread_;
  At at_ = At::kOpen;
  JsonScanner scanner_;
  std::string token_;  // the key or value that is being read
  std::string key_;
  std::string name_;
  std::string id_;
  std::string arguments_;  // whole, before the name is known
  bool begun_ = false;
  bool streaming_ = false;  // the value being read are arguments that go out as they come
  bool has_arguments_ = false;
};

// The answer with sections in it.
class SectionParser : public OutputParser {
 public:
  struct Marker {
    std::string_view text;  // begins with an ASCII character
    bool opens = true;      // false: mere markup
  };

  void Push(std::string_view text, OutputPieces* out) override;
  void Finish(OutputPieces* out) override;

 protected:
  // `json_at_start`: an answer that begins with '{' is a section.
  SectionParser(std::vector<Marker> markers, bool json_at_start)
      : markers_(std::move(markers)), json_at_start_(json_at_start) {}

  virtual std::unique_ptr<CallReader> Open(std::string_view marker) = 0;

 private:
  void PushText(char c, OutputPieces* out);
  void PushSection(char c, OutputPieces* out);
  // The section was none: its text is answer text, in which there may be others.
  void GiveUp(OutputPieces* out);
  bool MayBecomeMarker(std::string_view held) const;

  const std::vector<Marker> markers_;
  const bool json_at_start_;
  std::unique_ptr<CallReader> section_;
  std::string held_;           // white space, and what may become a marker
  bool only_space_ = true;     // so far
  bool after_markup_ = false;  // white space belongs to it
};

}  // namespace bitshard
