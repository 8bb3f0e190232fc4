#include "coordinator/frontend/prepare_request.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/sampling.h"
#include "coordinator/frontend/chat_prompt.h"
#include "coordinator/frontend/field_errors.h"
#include "coordinator/frontend/prepare_resume.h"
#include "kernels/base/status_macros.h"
#include "proto/token_mask.h"

namespace bitshard {
namespace {

constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 256;
constexpr int kMaxStopTokens = 64;
constexpr size_t kMaxIdBytes = 128;
constexpr uint32_t kMaxTopLogprobs = 20;
// Longer than any token but runs of blanks.
constexpr uint64_t kMaxBytesPerToken = 256;

uint64_t RandomBits() {
  thread_local absl::BitGen generator;
  return absl::Uniform<uint64_t>(generator);
}

std::vector<std::pair<uint32_t, float>> SortedBiases(const v1::Sampling& s) {
  std::vector<std::pair<uint32_t, float>> biases(s.logit_bias().begin(), s.logit_bias().end());
  std::sort(biases.begin(), biases.end());
  return biases;
}

bool IsHeaderText(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x21 && c <= 0x7e; });
}

void CheckSampling(const v1::Sampling& s, uint32_t vocabulary_size, FieldErrors& errors) {
  errors.CheckRange("sampling.temperature", s.temperature(), 0, 100);
  if (s.has_top_p()) errors.CheckRange("sampling.top_p", s.top_p(), 0, 1, /*open_low=*/true);
  errors.CheckRange("sampling.min_p", s.min_p(), 0, 1);
  errors.CheckRange("sampling.presence_penalty", s.presence_penalty(), -2, 2);
  errors.CheckRange("sampling.frequency_penalty", s.frequency_penalty(), -2, 2);
  if (s.has_repetition_penalty()) {
    errors.CheckRange("sampling.repetition_penalty", s.repetition_penalty(), 0, 2,
                      /*open_low=*/true);
  }
  if (s.logit_bias().size() > kMaxBiases) {
    errors.Add("sampling.logit_bias",
               absl::StrCat("at most ", kMaxBiases, " tokens, not ", s.logit_bias().size()));
  } else {
    for (const auto& [token, bias] : SortedBiases(s)) {
      const std::string field = absl::StrCat("sampling.logit_bias[", token, "]");
      errors.CheckRange(field, bias, -100, 100);
      if (token >= vocabulary_size) {
        errors.Add(field, absl::StrCat("the id must be below the vocabulary size ", vocabulary_size,
                                       ", not ", token));
      }
    }
  }
  CheckTokenIds(s.allowed_token_ids(), "sampling.allowed_token_ids", vocabulary_size, errors);
  CheckTokenIds(s.banned_token_ids(), "sampling.banned_token_ids", vocabulary_size, errors);
}

void CheckStopping(const v1::Stopping& stop, uint32_t vocabulary_size, FieldErrors& errors) {
  if (stop.strings_size() > kMaxStopStrings) {
    errors.Add("stop.strings",
               absl::StrCat("at most ", kMaxStopStrings, ", not ", stop.strings_size()));
  }
  for (int i = 0; i < std::min(stop.strings_size(), kMaxStopStrings); ++i) {
    if (stop.strings(i).empty() || stop.strings(i).size() > kMaxStopBytes) {
      errors.Add(
          absl::StrCat("stop.strings[", i, "]"),
          absl::StrCat("must have 1 to ", kMaxStopBytes, " bytes, not ", stop.strings(i).size()));
    }
  }
  if (stop.token_ids_size() > kMaxStopTokens) {
    errors.Add("stop.token_ids",
               absl::StrCat("at most ", kMaxStopTokens, ", not ", stop.token_ids_size()));
  } else {
    CheckTokenIds(stop.token_ids(), "stop.token_ids", vocabulary_size, errors);
  }
}

void CheckPrompt(const v1::GenerateRequest& request, const ServedModel& model,
                 FieldErrors& errors) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      CheckText(request.text(), model, errors);
      break;
    case v1::GenerateRequest::kTokens:
      if (request.tokens().ids().empty()) errors.Add("tokens.ids", "must not be empty");
      CheckTokenIds(request.tokens().ids(), "tokens.ids", model.vocabulary_size, errors);
      break;
    case v1::GenerateRequest::kChat:
      CheckChat(request.chat(), model, "chat", errors);
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      errors.Add("prompt", "set one of text, tokens, chat");
      break;
  }
}

Constraint ConstraintOf(const v1::Constraint& in) {
  Constraint out;
  switch (in.kind_case()) {
    case v1::Constraint::kJsonSchema:
      out.kind = Constraint::Kind::kJsonSchema;
      out.text = in.json_schema();
      break;
    case v1::Constraint::kRegex:
      out.kind = Constraint::Kind::kRegex;
      out.text = in.regex();
      break;
    case v1::Constraint::kGrammar:
      out.kind = Constraint::Kind::kGrammar;
      out.text = in.grammar();
      break;
    case v1::Constraint::kChoice:
      out.options.assign(in.choice().options().begin(), in.choice().options().end());
      break;
    case v1::Constraint::KIND_NOT_SET:
      break;
  }
  return out;
}

absl::Status CheckFields(const v1::GenerateRequest& request, const ServedModel& model) {
  FieldErrors errors;
  CheckRequestId(request.has_request_id(), request.request_id(), errors);
  CheckPrompt(request, model, errors);
  if (request.has_max_tokens() && request.max_tokens() == 0)
    errors.Add("max_tokens", "must be at least 1");
  if (request.max_tokens() > model.context_tokens) {
    errors.Add("max_tokens",
               absl::StrCat(request.max_tokens(), " exceeds the context of ", model.context_tokens,
                            " tokens"),
               kReasonPromptTooLong);
  }
  CheckSampling(request.sampling(), model.vocabulary_size, errors);
  CheckStopping(request.stop(), model.vocabulary_size, errors);
  if (request.output().top_logprobs() > kMaxTopLogprobs) {
    errors.Add("output.top_logprobs", absl::StrCat("at most ", kMaxTopLogprobs, ", not ",
                                                   request.output().top_logprobs()));
  }
  if (request.has_constraint() &&
      request.constraint().kind_case() == v1::Constraint::KIND_NOT_SET) {
    errors.Add("constraint", "set one of json_schema, regex, grammar, choice");
  }
  CheckResume(request, model, errors);
  if (request.has_choices() && (request.choices() == 0 || request.choices() > kMaxChoices)) {
    errors.Add("choices", absl::StrCat("must be 1 to ", kMaxChoices, ", not ", request.choices()));
  }
  if (!v1::ServiceClass_IsValid(request.service_class()))
    errors.Add("service_class", "unknown value");
  return errors.ToStatus();
}

// Fields that the API knows and this build does not.
absl::Status CheckBuilt(const v1::GenerateRequest& request) {
  std::vector<std::string> missing;
  const auto refuse = [&](bool used, absl::string_view field) {
    if (used) missing.emplace_back(field);
  };
  refuse(!request.adapter().empty(), "adapter");
  refuse(!request.media().empty(), "media");
  if (missing.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "not built yet: ", absl::StrJoin(missing, ", "),
      "; built: prompts as text, tokens or chat; max_tokens; sampling; stop; "
      "output text, token_ids, logprobs, top_logprobs, prompt_logprobs, status_events; choices; "
      "priority; service_class; resume"));
}

// Penalties, biases, masks and min_tokens. REQUIRES: CheckFields, and what ends the request and
// max_tokens are set.
absl::Status SetEdits(const v1::GenerateRequest& request, const ServedModel& model,
                      GenerateRequest& out) {
  const v1::Sampling& s = request.sampling();
  if (s.has_repetition_penalty()) out.repetition_penalty = s.repetition_penalty();
  out.frequency_penalty = s.frequency_penalty();
  out.presence_penalty = s.presence_penalty();
  out.logit_bias = SortedBiases(s);
  out.min_tokens = request.stop().min_tokens();
  if (out.min_tokens > out.max_tokens) {
    return BadFieldError("stop.min_tokens", absl::StrCat("must be at most max_tokens, here ",
                                                         out.max_tokens, ", not ", out.min_tokens));
  }
  if (s.allowed_token_ids().empty() && s.banned_token_ids().empty()) return absl::OkStatus();
  std::string mask =
      MakeTokenMask(model.vocabulary_size, /*allowed=*/s.allowed_token_ids().empty());
  for (const uint32_t token : s.allowed_token_ids()) AllowToken(token, &mask);
  for (const uint32_t token : s.banned_token_ids()) ForbidToken(token, &mask);
  out.allowed_tokens = mask;
  // What is left for the first token must not be nothing.
  if (out.min_tokens > 0) {
    for (const int32_t token : EndTokensOf(out, *model.tokenizer)) {
      if (static_cast<uint32_t>(token) < model.vocabulary_size)
        ForbidToken(static_cast<uint32_t>(token), &mask);
    }
  }
  for (uint32_t token = 0; token < model.vocabulary_size; ++token) {
    if (MaskAllows(mask, token)) return absl::OkStatus();
  }
  return BadFieldError(
      s.allowed_token_ids().empty() ? "sampling.banned_token_ids" : "sampling.allowed_token_ids",
      "with the banned ones, and the end tokens if stop.min_tokens is set, taken "
      "away no token is left; allow more");
}

}  // namespace

void CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids, absl::string_view field,
                   uint32_t vocabulary_size, FieldErrors& errors) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < vocabulary_size) continue;
    errors.Add(absl::StrCat(field, "[", i, "]"), absl::StrCat("must be below the vocabulary size ",
                                                              vocabulary_size, ", not ", ids[i]));
    return;  // one is enough
  }
}

void CheckRequestId(bool given, const std::string& id, FieldErrors& errors) {
  if (given && id.empty()) errors.Add("request_id", "must not be empty when set");
  if (id.size() > kMaxIdBytes || !IsHeaderText(id)) {
    errors.Add("request_id", absl::StrCat("must be at most ", kMaxIdBytes,
                                          " printable ASCII characters without blanks"));
  }
}

void CheckText(const std::string& text, const ServedModel& model, FieldErrors& errors,
               const std::string& field) {
  if (text.size() <= MaxTextBytes(model)) return;
  errors.Add(field,
             absl::StrCat(text.size(), " bytes cannot fit the context of ", model.context_tokens,
                          " tokens"),
             kReasonPromptTooLong);
}

absl::Status CheckPromptTokens(const std::vector<int32_t>& tokens, const std::string& field,
                               const ServedModel& model) {
  if (tokens.empty()) return BadFieldError(field, "gives no tokens; say something");
  for (const int32_t token : tokens) {
    if (token >= 0 && static_cast<uint32_t>(token) < model.vocabulary_size) continue;
    return BadFieldError(
        field, absl::StrCat("gives token ", token, ", but the model knows only ",
                            model.vocabulary_size, ": its tokenizer does not fit its weights"));
  }
  return absl::OkStatus();
}

std::string DrawRequestId() {
  return absl::StrCat("req-", absl::Hex(RandomBits(), absl::kZeroPad16));
}

uint64_t MaxTextBytes(const ServedModel& model) {
  return uint64_t{model.context_tokens} * kMaxBytesPerToken;
}

absl::Status CheckModelName(const ServedModel& model, const std::string& name) {
  if (name.empty() ||
      std::find(model.names.begin(), model.names.end(), name) != model.names.end()) {
    return absl::OkStatus();
  }
  return WithErrorInfo(
      absl::NotFoundError(absl::StrCat("no model \"", absl::CHexEscape(name.substr(0, 128)),
                                       "\" here; there is: ", absl::StrJoin(model.names, ", "))),
      "MODEL_NOT_FOUND");
}

// How the answer to a chat is taken apart; it stays text where the caller wants it raw, and where
// it has a form of the caller's own.
void SetAnswerFormat(const v1::GenerateRequest& request, const ServedModel& model,
                     const RenderedChat& rendered, PreparedRequest& prepared) {
  const v1::OutputOptions& output = request.output();
  const bool raw = (output.has_skip_special_tokens() && !output.skip_special_tokens()) ||
                   (output.has_text() && !output.text());
  if (raw || request.has_constraint() || model.output_format == nullptr) return;
  const OutputFormat* format = model.output_format;
  const std::shared_ptr<const std::vector<ChatTool>> tools = ToolsOf(request.chat());
  // The end of the prompt, the template's own, tells whether the model goes on in its reasoning.
  constexpr size_t kTail = 256;
  size_t begin = rendered.text.size() - std::min(rendered.text.size(), kTail);
  if (!rendered.plain.empty()) begin = std::max(begin, rendered.plain.back().end);
  prepared.new_parser = [format, tools, tail = rendered.text.substr(begin)] {
    return format->Make({.prompt = tail, .tools = tools});
  };
  for (const std::string_view marker : format->Markers(!tools->empty())) {
    const std::optional<int32_t> id = model.tokenizer->TokenToId(marker);
    if (id.has_value() && model.tokenizer->IsSpecial(*id)) {
      prepared.engine.visible_tokens.push_back(*id);
    }
  }
}

absl::StatusOr<PreparedRequest> PrepareRequest(const v1::GenerateRequest& request,
                                               const ServedModel& model, uint64_t pool_tokens) {
  RETURN_IF_ERROR(CheckResumeModel(request.resume(), model));
  RETURN_IF_ERROR(CheckFields(request, model));
  RETURN_IF_ERROR(CheckModelName(model, request.model()));
  RETURN_IF_ERROR(CheckBuilt(request));

  PreparedRequest prepared;
  GenerateRequest& out = prepared.engine;
  std::string prompt_field;
  if (request.has_tokens()) {
    prompt_field = "tokens.ids";
    out.prompt_tokens.assign(request.tokens().ids().begin(), request.tokens().ids().end());
  } else if (request.has_text()) {
    prompt_field = "text";
    ASSIGN_OR_RETURN(out.prompt_tokens, model.tokenizer->Encode(request.text(), EncodeOptions()));
  } else {
    prompt_field = "chat";
    ASSIGN_OR_RETURN(const RenderedChat rendered,
                     RenderChat(request.chat(), model, "chat", absl::Now()));
    ASSIGN_OR_RETURN(out.prompt_tokens, TokenizeChat(rendered, model));
    SetAnswerFormat(request, model, rendered, prepared);
  }
  const uint64_t prompt_tokens = out.prompt_tokens.size();
  RETURN_IF_ERROR(CheckPromptTokens(out.prompt_tokens, prompt_field, model));
  if (prompt_tokens >= model.context_tokens) {
    return PromptTooLongError(
        prompt_field, absl::StrCat("the prompt has ", prompt_tokens, " tokens, the context holds ",
                                   model.context_tokens, " and must hold the output too"));
  }
  const uint64_t left = model.context_tokens - prompt_tokens;
  if (request.max_tokens() > left) {
    return PromptTooLongError(
        "max_tokens",
        absl::StrCat("prompt ", prompt_tokens, " + max_tokens ", request.max_tokens(),
                     " exceeds the context of ", model.context_tokens, "; at most ", left));
  }
  uint64_t by_default = left;
  if (pool_tokens > prompt_tokens) by_default = std::min(by_default, pool_tokens - prompt_tokens);
  out.max_tokens =
      request.has_max_tokens() ? request.max_tokens() : static_cast<uint32_t>(by_default);

  out.request_id = request.has_request_id() ? request.request_id() : DrawRequestId();
  // One that goes on with an answer goes on with one choice.
  out.choices = request.has_resume() ? 1 : std::max<uint32_t>(1, request.choices());
  const v1::Sampling& s = request.sampling();
  out.temperature = s.temperature();
  out.top_k = s.top_k();
  out.top_p = s.has_top_p() ? s.top_p() : 1;
  out.min_p = s.min_p();
  out.seed = s.has_seed()                  ? s.seed()
             : request.resume().has_seed() ? request.resume().seed()
                                           : RandomBits();
  out.top_logprobs = request.output().top_logprobs();
  out.logprobs = request.output().logprobs() || out.top_logprobs > 0;
  if (request.output().prompt_logprobs()) out.score_from = 0;
  out.stop.assign(request.stop().strings().begin(), request.stop().strings().end());
  out.stop_token_ids.assign(request.stop().token_ids().begin(), request.stop().token_ids().end());
  if (!request.stop().ignore_eos()) {
    out.stop_token_ids.insert(out.stop_token_ids.end(), model.end_tokens.begin(),
                              model.end_tokens.end());
  }
  out.include_stop = request.stop().include_matched();
  out.ignore_eos = request.stop().ignore_eos();
  RETURN_IF_ERROR(SetEdits(request, model, out));
  out.skip_special_tokens =
      request.output().has_skip_special_tokens() ? request.output().skip_special_tokens() : true;
  out.priority = request.priority();
  out.batch = request.service_class() == v1::SERVICE_CLASS_BATCH;
  out.cache_salt = request.cache_salt();
  prepared.send_text = request.output().has_text() ? request.output().text() : true;
  prepared.send_token_ids = request.output().token_ids();
  if (request.has_constraint()) prepared.constraint = ConstraintOf(request.constraint());
  out.status_events = request.output().status_events();
  RETURN_IF_ERROR(SetResume(request, model, prepared));

  prepared.started.set_request_id(out.request_id);
  prepared.started.set_model(model.names.front());
  prepared.started.set_model_fingerprint(model.fingerprint);
  prepared.started.set_seed(out.seed);
  for (uint32_t i = 0; request.choices() > 1 && i < request.choices(); ++i)
    prepared.started.add_choice_seeds(ChoiceSeed(out.seed, i));
  prepared.started.set_prompt_tokens(static_cast<uint32_t>(prompt_tokens));
  return prepared;
}

}  // namespace bitshard
