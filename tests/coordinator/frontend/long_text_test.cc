// Texts that wait for the thread that tokenizes: of callers who go meanwhile, and at the end.

#include <functional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "coordinator/engine/error_reason.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

constexpr size_t kLong = 20'000;  // bytes

// Keeps the first thread that has tokenized a text for Tokenize until it is let go.
class HoldingMetrics final : public RecordedMetrics {
 public:
  void TokenizerTime(TokenizerOp op, absl::Duration time) override {
    RecordedMetrics::TokenizerTime(op, time);
    if (op != TokenizerOp::kTokenize || held_.HasBeenNotified()) return;
    held_.Notify();
    let_go_.WaitForNotification();
  }
  void AwaitHeld() { AwaitNotified(held_, "a text that is worked on"); }
  void LetGo() { let_go_.Notify(); }

 private:
  absl::Notification held_, let_go_;
};

template <typename Request, typename Response>
struct Call {
  grpc::ClientContext context;
  Request request;
  Response response;
  grpc::Status status;
  absl::Notification done;

  std::function<void(grpc::Status)> Done() {
    return [this](const grpc::Status& ended) {
      status = ended;
      done.Notify();
    };
  }
  absl::Status Await() {
    AwaitNotified(done, "the end of a call");
    return FromGrpc(status);
  }
};
using TokenizeCall = Call<v1::TokenizeRequest, v1::TokenizeResponse>;
using DetokenizeCall = Call<v1::DetokenizeRequest, v1::DetokenizeResponse>;
using TemplateCall = Call<v1::ApplyChatTemplateRequest, v1::ApplyChatTemplateResponse>;

class LongTextTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(&holding_); }
  void TearDown() override {
    FrontendTest::TearDown();
    engine_.ForgetAll();  // its calls count until they go
  }

  void Start(TokenizeCall& call) {
    call.request.set_text(std::string(kLong, 'a'));
    stub_->async()->Tokenize(&call.context, &call.request, &call.response, call.Done());
  }
  void Start(DetokenizeCall& call) {
    for (size_t i = 0; i < kLong; ++i) call.request.add_token_ids('a');
    stub_->async()->Detokenize(&call.context, &call.request, &call.response, call.Done());
  }
  void Start(TemplateCall& call) {
    v1::ChatMessage& message = *call.request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(std::string(kLong, 'a'));
    stub_->async()->ApplyChatTemplate(&call.context, &call.request, &call.response, call.Done());
  }
  void AwaitStart(const std::string& method) {
    holding_.Await("start /bitshard.v1.Inference/" + method, 1);
  }
  // The service has heard of every cancel so far: of this later one on the same connection, too.
  void AwaitCancels() {
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, Request());
    const auto live = engine_.Await();
    context.TryCancel();
    engine_.AwaitCancel();
    live.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
    EXPECT_FALSE(Finish(*stream).ok());
  }

  HoldingMetrics holding_;
};

TEST_F(LongTextTest, ThoseOfCallersWhoHaveGoneAreNotWorkedOff) {
  TokenizeCall held, last;
  Start(held);
  holding_.AwaitHeld();
  DetokenizeCall cancelled;
  Start(cancelled);
  AwaitStart("Detokenize");
  TemplateCall late;
  late.context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(300)));
  Start(late);
  cancelled.context.TryCancel();
  EXPECT_EQ(cancelled.Await().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(late.Await().code(), absl::StatusCode::kDeadlineExceeded);
  AwaitCancels();
  Start(last);
  holding_.LetGo();
  EXPECT_TRUE(held.Await().ok());
  EXPECT_TRUE(last.Await().ok());
  EXPECT_EQ(last.response.token_ids_size(), int{kLong});
  EXPECT_EQ(holding_.Seen(std::string(Name(TokenizerOp::kTokenize))), 2);
  EXPECT_EQ(holding_.Seen(std::string(Name(TokenizerOp::kDetokenize))), 0);
  EXPECT_EQ(holding_.Seen(std::string(Name(TokenizerOp::kTemplate))), 0);
  EXPECT_EQ(holding_.Seen("CANCELLED /bitshard.v1.Inference/Detokenize"), 1);
}

TEST_F(LongTextTest, AtTheEndThoseThatWaitAreSentElsewhere) {
  TokenizeCall held;
  Start(held);
  holding_.AwaitHeld();
  DetokenizeCall text;
  Start(text);
  AwaitStart("Detokenize");
  v1::GenerateRequest request = Request();
  request.set_cache_salt(std::string(kLong, 's'));
  grpc::ClientContext context;
  auto prompt = stub_->Generate(&context, request);
  AwaitStart("Generate");
  std::thread shutdown([this] { server_->Shutdown(absl::InfiniteDuration()); });
  // Both before the text that is worked on has its answer.
  for (const absl::Status& status : {text.Await(), FromGrpc(Finish(*prompt))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ErrorReason(status), kReasonDraining);
    EXPECT_TRUE(RetryDelay(status).has_value());
  }
  EXPECT_EQ(holding_.Take(), std::vector<RejectReason>{RejectReason::kDraining});
  holding_.LetGo();
  EXPECT_TRUE(held.Await().ok()) << held.status.error_message();
  shutdown.join();
  EXPECT_EQ(engine_.submitted(), 0u);
}

}  // namespace
}  // namespace bitshard
