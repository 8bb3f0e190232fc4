// Resume of GenerateRequest: what is wrong with it, and what it makes of the prepared request.
#pragma once

#include "absl/status/status.h"

#include "coordinator/frontend/field_errors.h"
#include "coordinator/frontend/prepare_request.h"
#include "coordinator/frontend/served_model.h"
#include "proto/inference.pb.h"

namespace bitshard {

// Its fields against those of the rest of the request.
void CheckResume(const v1::GenerateRequest& request, const ServedModel& model, FieldErrors& errors);

// FAILED_PRECONDITION when another model, or other numerics, began the answer.
absl::Status CheckResumeModel(const v1::Resume& resume, const ServedModel& model);

// REQUIRES: CheckResume; all else of `prepared` is set. INVALID_ARGUMENT when the tokens cannot be
// of this request's answer; what a constraint has against them the engine finds out.
absl::Status SetResume(const v1::GenerateRequest& request, const ServedModel& model,
                       PreparedRequest& prepared);

}  // namespace bitshard
