// A model's chat template: messages in, the prompt text out.
//
// Templates are Jinja programs out of the model's files, hence hostile: they are parsed once when
// the model is loaded (constructs that we do not have are named then, not at the first request),
// and each rendering is limited in steps, output and recursion. Constant after Parse; Render may be
// called from any thread. Semantics are those of the Jinja environment that model files are written
// for: trim_blocks, lstrip_blocks, the template's last newline dropped, no autoescape, undefined
// prints as nothing.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace bitshard {

struct JinjaTemplate;  // jinja_ast.h

struct ChatMessage {
  std::string role;
  std::string content;
};

class ChatTemplate {
 public:
  // `bos_token` and `eos_token` are the texts that the template's variables of these names get; may
  // be empty. INVALID_ARGUMENT with the line for a syntax error, UNIMPLEMENTED with the construct's
  // name for what we do not have.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view jinja_source,
                                            std::string_view bos_token, std::string_view eos_token);

  // INVALID_ARGUMENT when the template refuses the messages (raise_exception) or fails on them;
  // RESOURCE_EXHAUSTED past the limits.
  absl::StatusOr<std::string> Render(absl::Span<const ChatMessage> messages,
                                     bool add_generation_prompt) const;

  ChatTemplate(ChatTemplate&&);
  ChatTemplate& operator=(ChatTemplate&&);
  ~ChatTemplate();

 private:
  ChatTemplate(std::unique_ptr<const JinjaTemplate> program, std::string bos_token,
               std::string eos_token);

  std::unique_ptr<const JinjaTemplate> program_;
  std::string bos_token_;
  std::string eos_token_;
};

}  // namespace bitshard
