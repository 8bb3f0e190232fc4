// A FrontendServer over a FakeEngine and a tokenizer of bytes, with a client: what the frontend's
// tests have in common.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "coordinator/frontend/server.h"
#include "kernels/base/log.h"
#include "proto/inference.grpc.pb.h"
#include "proto/rpc_status.pb.h"
#include "proto/status_details.h"
#include "proto/status_map.h"
#include "tests/coordinator/frontend/fake_engine.h"
#include "tests/support/await.h"
#include "tests/support/byte_tokenizer.h"

namespace bitshard {

inline constexpr char kTestTemplate[] =
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if "
    "add_generation_prompt %}<a>{% endif %}";

// The reasons of the requests that the frontend refuses by itself, and how often everything else
// happened.
class RecordedMetrics : public NullEngineMetrics {
 public:
  void Refused(RejectReason reason) override {
    std::lock_guard<std::mutex> lock(mu_);
    reasons_.push_back(reason);
  }
  void Received(Face) override { Count("received"); }
  void RefusalSent(absl::Duration) override { Count("refusals"); }
  void FirstToken(absl::Duration) override { Count("first_tokens"); }
  void EndedWithoutToken() override { Count("without_token"); }
  void TokenizerTime(TokenizerOp op, absl::Duration) override { Count(std::string(Name(op))); }
  void StreamBacklog(int64_t change) override { Count("backlog", change); }
  void Coalesced() override { Count("coalesced"); }
  void SlowReaderEnded() override { Count("slow_readers"); }
  void CallStarted(absl::string_view method) override { Count(absl::StrCat("start ", method)); }
  void CallEnded(absl::string_view method, absl::StatusCode code, absl::Duration) override {
    Count(absl::StrCat(absl::StatusCodeToString(code), " ", method));
  }

  std::vector<RejectReason> Take() {
    std::lock_guard<std::mutex> lock(mu_);
    return std::exchange(reasons_, {});
  }
  int64_t Seen(const std::string& what) {
    std::lock_guard<std::mutex> lock(mu_);
    return counts_[what];
  }
  // Waits until it has happened so often; what calls tell at their very end comes a moment later.
  // A count that doesn't come fails by name, before the test's time is over.
  void Await(const std::string& what, int64_t times) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait_for(lock, absl::ToChronoSeconds(kAwaitPatience),
                      [&] { return counts_[what] >= times; });
    EXPECT_EQ(counts_[what], times) << what;
  }

 private:
  void Count(const std::string& what, int64_t change = 1) {
    std::lock_guard<std::mutex> lock(mu_);
    counts_[what] += change;
    changed_.notify_all();
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, int64_t> counts_;
  std::vector<RejectReason> reasons_;
};

class FrontendTest : public ::testing::Test {
 protected:
  FrontendTest() : tokenizer_(MakeByteTokenizer()) {
    InitLogging("test", "error");
    model_.names = {"tiny", "alias"};
    model_.fingerprint = "abc-a16-bf16";
    model_.family = "llama";
    model_.context_tokens = 64;
    model_.vocabulary_size = kByteTokenizerVocab;
    model_.weight_formats = {"f32", "q4_1"};
    model_.kv_cache_type = "bf16";
    model_.activations = "a16";
    model_.tokenizer = tokenizer_.get();
    auto chat = ChatTemplate::Parse(kTestTemplate, "", "");
    EXPECT_TRUE(chat.ok()) << chat.status();
    chat_template_ = *std::move(chat);
    model_.chat_template = &*chat_template_;
  }

  // A server that goes waits for its calls.
  void TearDown() override {
    engine_.EndAll();
    server_.reset();
  }

  void StartServer() { StartServer(&metrics_); }
  void StartServer(RecordedMetrics* metrics) {
    options_.admin.group = [this] {
      std::lock_guard<std::mutex> lock(group_hook_mu_);
      if (group_hook_) group_hook_();
      return group_;
    };
    options_.admin.drain = [this](std::optional<absl::Duration> timeout) {
      drained_ = timeout.value_or(absl::Seconds(77));
    };
    options_.admin.version = "test";
    auto server = FrontendServer::Start(options_, &engine_, &model_, metrics);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = Channel(server_->ports().inference);
    stub_ = v1::Inference::NewStub(channel_);
  }

  static std::shared_ptr<grpc::Channel> Channel(int port, grpc::ChannelArguments arguments = {}) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  static v1::GenerateRequest Request(const std::string& text = "abc") {
    v1::GenerateRequest request;
    request.set_text(text);
    request.set_max_tokens(8);
    return request;
  }

  // A call that must fail before anything is sent; its status with details.
  absl::Status Refused(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    EXPECT_FALSE(stream->Read(&response)) << response.DebugString();
    return FromGrpc(stream->Finish());
  }

  // Reads what is left, then the status.
  static grpc::Status Finish(grpc::ClientReader<v1::GenerateResponse>& stream) {
    v1::GenerateResponse response;
    while (stream.Read(&response)) {
    }
    return stream.Finish();
  }

  // Sends raw bytes to a unary or streaming method.
  grpc::Status Raw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, this);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return status;
  }

  RecordedMetrics metrics_;  // outlives the calls, which the engine holds
  FakeEngine engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  ServedModel model_;
  GroupSnapshot group_;
  std::mutex group_hook_mu_;
  std::function<void()> group_hook_;  // runs whenever the group is asked for; may be empty
  std::optional<absl::Duration> drained_;
  FrontendServer::Options options_;
  std::unique_ptr<FrontendServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// Fields that the status calls wrong.
inline std::vector<std::string> BadFields(const absl::Status& status) {
  std::vector<std::string> fields;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    google::rpc::BadRequest bad;
    if (url == "type.googleapis.com/google.rpc.BadRequest" &&
        bad.ParseFromString(std::string(payload))) {
      for (const auto& violation : bad.field_violations()) fields.push_back(violation.field());
    }
  });
  return fields;
}

}  // namespace bitshard
