#include "coordinator/frontend/inference_service.h"

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/frontend/complete_call.h"
#include "coordinator/frontend/embed_call.h"
#include "coordinator/frontend/generate_call.h"
#include "coordinator/frontend/score_call.h"
#include "coordinator/frontend/text_methods.h"
#include "coordinator/frontend/wire.h"
#include "proto/inference.grpc.pb.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

constexpr int kMaxAborts = 1024;

// clang-format off
template <typename Base> using RawGenerate = v1::Inference::WithRawCallbackMethod_Generate<Base>;
template <typename Base> using RawComplete = v1::Inference::WithRawCallbackMethod_Complete<Base>;
template <typename Base> using RawScore = v1::Inference::WithRawCallbackMethod_Score<Base>;
template <typename Base> using RawEmbed = v1::Inference::WithRawCallbackMethod_Embed<Base>;
template <typename Base> using RawTokenize = v1::Inference::WithRawCallbackMethod_Tokenize<Base>;
template <typename Base> using RawDetokenize = v1::Inference::WithRawCallbackMethod_Detokenize<Base>;
template <typename Base> using RawApplyChatTemplate = v1::Inference::WithRawCallbackMethod_ApplyChatTemplate<Base>;
template <typename Base> using RawListModels = v1::Inference::WithRawCallbackMethod_ListModels<Base>;
template <typename Base> using RawAbort = v1::Inference::WithRawCallbackMethod_Abort<Base>;
// clang-format on
using RawInference = RawGenerate<RawComplete<RawScore<RawEmbed<RawTokenize<
    RawDetokenize<RawApplyChatTemplate<RawListModels<RawAbort<v1::Inference::Service>>>>>>>>>;

// `method` of text_methods.h, its time counted.
template <typename Request, typename Response>
auto Timed(EngineMetrics* metrics, TokenizerOp op,
           absl::Status (*method)(const ServedModel&, const Request&, Response*)) {
  return [metrics, op, method](const ServedModel& model, const Request& in, Response* out) {
    const absl::Time begin = absl::Now();
    absl::Status status = method(model, in, out);
    metrics->TokenizerTime(op, absl::Now() - begin);
    return status;
  };
}

// Once the deadline has passed, or the caller has gone.
absl::Status StillWanted(const grpc::CallbackServerContext& context) {
  if (context.deadline() <= std::chrono::system_clock::now())
    return absl::DeadlineExceededError("the deadline passed before the request was read");
  return context.IsCancelled() ? absl::CancelledError("the caller has gone") : absl::OkStatus();
}

class InferenceService final : public RawInference {
 public:
  explicit InferenceService(const FrontendContext* frontend) : frontend_(frontend) {}

  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;

  grpc::ServerWriteReactor<Bytes>* Generate(Context* context, const Bytes* request) override {
    return GenerateCall::Start(frontend_, context, *request);
  }
  grpc::ServerUnaryReactor* Complete(Context* context, const Bytes* request,
                                     Bytes* response) override {
    return CompleteCall::Start(frontend_, context, *request, response);
  }
  grpc::ServerUnaryReactor* Score(Context* context, const Bytes* request,
                                  Bytes* response) override {
    return ScoreCall::Start(frontend_, context, *request, response);
  }
  grpc::ServerUnaryReactor* Embed(Context* context, const Bytes* request,
                                  Bytes* response) override {
    return EmbedCall::Start(frontend_, context, *request, response);
  }
  grpc::ServerUnaryReactor* Tokenize(Context* context, const Bytes* request,
                                     Bytes* response) override {
    return AnswerText<v1::TokenizeRequest, v1::TokenizeResponse>(
        context, request, response,
        Timed(frontend_->metrics, TokenizerOp::kTokenize, &bitshard::Tokenize));
  }
  grpc::ServerUnaryReactor* Detokenize(Context* context, const Bytes* request,
                                       Bytes* response) override {
    return AnswerText<v1::DetokenizeRequest, v1::DetokenizeResponse>(
        context, request, response,
        Timed(frontend_->metrics, TokenizerOp::kDetokenize, &bitshard::Detokenize));
  }
  grpc::ServerUnaryReactor* ApplyChatTemplate(Context* context, const Bytes* request,
                                              Bytes* response) override {
    return AnswerText<v1::ApplyChatTemplateRequest, v1::ApplyChatTemplateResponse>(
        context, request, response,
        Timed(frontend_->metrics, TokenizerOp::kTemplate, &bitshard::ApplyChatTemplate));
  }
  grpc::ServerUnaryReactor* ListModels(Context* context, const Bytes* request,
                                       Bytes* response) override {
    return AnswerText<v1::ListModelsRequest, v1::ListModelsResponse>(context, request, response,
                                                                     &bitshard::ListModels);
  }
  grpc::ServerUnaryReactor* Abort(Context* context, const Bytes* request,
                                  Bytes* response) override {
    return AnswerUnary<v1::AbortRequest, v1::AbortResponse>(
        context, request, response, [&](const v1::AbortRequest& abort, auto*) {
          if (abort.request_ids_size() > kMaxAborts) {
            return BadFieldError("request_ids", absl::StrCat("at most ", kMaxAborts, ", not ",
                                                             abort.request_ids_size()));
          }
          const std::string caller = CallerOf(*context);
          for (const std::string& id : abort.request_ids()) frontend_->engine->Abort(caller, id);
          return absl::OkStatus();
        });
  }

 private:
  // Long texts go to the background thread: gRPC's threads are few, and the workers' streams need
  // them too.
  template <typename Request, typename Response, typename Method>
  grpc::ServerUnaryReactor* AnswerText(Context* context, const Bytes* request, Bytes* response,
                                       Method method) {
    const ServedModel* model = frontend_->model;
    const auto answer = [model, method](const Request& in, Response* out) {
      return method(*model, in, out);
    };
    if (request->Length() <= kInlineBytes)
      return AnswerUnary<Request, Response>(context, request, response, answer);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto work = [reactor, context, request, response, answer](const absl::Status& turn) {
      const absl::Status status = turn.ok() ? StillWanted(*context) : turn;
      if (!status.ok()) return reactor->Finish(EndOfCall(context, status));
      AnswerOn<Request, Response>(reactor, context, request, response, answer);
    };
    const bool queued = frontend_->background->Run(request->Length(), work);
    if (!queued) {
      reactor->Finish(
          EndOfCall(context, WithRetryInfo(absl::ResourceExhaustedError("too many long texts wait"),
                                           absl::Seconds(1))));
    }
    return reactor;
  }

  static constexpr size_t kInlineBytes = 16 << 10;
  const FrontendContext* const frontend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(const FrontendContext* frontend) {
  return std::make_unique<InferenceService>(frontend);
}

}  // namespace bitshard
