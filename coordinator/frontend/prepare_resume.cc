#include "coordinator/frontend/prepare_resume.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "coordinator/engine/resume.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"

namespace bitshard {

void CheckResume(const v1::GenerateRequest& request, const ServedModel& model,
                 FieldErrors& errors) {
  if (!request.has_resume()) return;
  const v1::Resume& resume = request.resume();
  const v1::Sampling& sampling = request.sampling();
  CheckTokenIds(resume.output_ids(), "resume.output_ids", model.vocabulary_size, errors);
  if (request.has_max_tokens() &&
      static_cast<uint32_t>(resume.output_ids_size()) > request.max_tokens()) {
    errors.Add("resume.output_ids",
               absl::StrCat(resume.output_ids_size(), " tokens are more than max_tokens ",
                            request.max_tokens(),
                            ", which counts the whole answer; send the first request's"));
  }
  if (resume.has_seed() && sampling.has_seed() && resume.seed() != sampling.seed()) {
    errors.Add("resume.seed",
               absl::StrCat("is ", resume.seed(), ", but sampling.seed is ", sampling.seed(),
                            "; send Started.seed of the first "
                            "call, or none"));
  }
  if (!resume.output_ids().empty() && sampling.temperature() > 0 && !resume.has_seed() &&
      !sampling.has_seed()) {
    errors.Add("resume.seed",
               "is needed to go on with drawn tokens; send Started.seed of the first call");
  }
  if (resume.supersede() && !request.has_request_id())
    errors.Add("resume.supersede", "needs request_id, the one of the call that it replaces");
  if (resume.choice() >= std::max<uint32_t>(1, request.choices())) {
    errors.Add("resume.choice",
               absl::StrCat("must be below choices, here ",
                            std::max<uint32_t>(1, request.choices()), ", not ", resume.choice()));
  }
}

absl::Status CheckResumeModel(const v1::Resume& resume, const ServedModel& model) {
  if (!resume.has_model_fingerprint() || resume.model_fingerprint() == model.fingerprint)
    return absl::OkStatus();
  return WithErrorInfo(
      absl::FailedPreconditionError(absl::StrCat(
          "the answer was begun by \"", absl::CHexEscape(resume.model_fingerprint().substr(0, 128)),
          "\", here is \"", model.fingerprint,
          "\": it would go on with other bits; resume it at a service of its model and numerics, "
          "or send the request without resume")),
      "MODEL_CHANGED");
}

absl::Status SetResume(const v1::GenerateRequest& request, const ServedModel& model,
                       PreparedRequest& prepared) {
  if (!request.has_resume()) return absl::OkStatus();
  const v1::Resume& resume = request.resume();
  GenerateRequest& out = prepared.engine;
  out.supersede = resume.supersede();
  out.first_choice = resume.choice();
  if (resume.output_ids().empty()) return absl::OkStatus();
  out.resumed.assign(resume.output_ids().begin(), resume.output_ids().end());
  if (out.resumed.size() > out.max_tokens) {  // the default's
    return BadFieldError("resume.output_ids",
                         absl::StrCat(out.resumed.size(), " tokens are more than the ",
                                      out.max_tokens, " that the context has left"));
  }
  out.score_from.reset();  // the caller has the scores
  RETURN_IF_ERROR(CheckResumedAllowed(out, *model.tokenizer));
  ASSIGN_OR_RETURN(ResumedAnswer answer,
                   ReplayResumed(out, model.tokenizer, &prepared.resumed_text));
  out.replayed = std::make_shared<const ResumedAnswer>(std::move(answer));
  return absl::OkStatus();
}

}  // namespace bitshard
