// A model's chat template: a conversation in, the prompt text out.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coordinator/text/chat_input.h"
#include "coordinator/text/text_span.h"

namespace bitshard {

struct JinjaTemplate;    // jinja_ast.h
struct ChatConventions;  // chat_variables.h

struct RenderedChat {
  std::string text;
  // The bytes that the caller gave, not the template: ascending, apart. Control tokens in them are
  // mere letters (EncodeOptions.plain).
  std::vector<TextSpan> plain;
};

class ChatTemplate {
 public:
  // `bos_token` and `eos_token` are the texts that the template's variables of these names get; may
  // be empty. INVALID_ARGUMENT with the line for a syntax error, UNIMPLEMENTED with the construct's
  // name for what we do not have.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view jinja_source,
                                            std::string_view bos_token, std::string_view eos_token);

  // INVALID_ARGUMENT when the template refuses the conversation (raise_exception) or fails on it;
  // RESOURCE_EXHAUSTED past the limits.
  absl::StatusOr<RenderedChat> Render(const ChatInput& chat) const;
  // The same from all variables as one JSON object: messages, tools, add_generation_prompt, ...
  // What it does not have is undefined.
  absl::StatusOr<RenderedChat> RenderVariables(std::string_view json, absl::Time now) const;

  const std::string& source() const { return source_; }

  ChatTemplate(ChatTemplate&&);
  ChatTemplate& operator=(ChatTemplate&&);
  ~ChatTemplate();

 private:
  ChatTemplate(std::string source, std::unique_ptr<const JinjaTemplate> program,
               std::string bos_token, std::string eos_token);
  absl::StatusOr<RenderedChat> RenderWith(const ChatInput& chat,
                                          const ChatConventions& conventions) const;
  ChatConventions FindConventions() const;

  std::string source_;
  std::unique_ptr<const JinjaTemplate> program_;
  std::string bos_token_;
  std::string eos_token_;
  std::unique_ptr<const ChatConventions> conventions_;
};

// INVALID_ARGUMENT unless `text` is one JSON object.
absl::Status CheckJsonObject(std::string_view text);

// CheckJsonObject, and that no member has a name that chats have fields for.
absl::Status CheckTemplateVariables(std::string_view json);

}  // namespace bitshard
