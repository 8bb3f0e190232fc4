// What comes in broken, wrong or not built: every such request is refused with the status of the
// contract.

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class ValidationTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(); }
};

TEST_F(ValidationTest, MalformedBytesAreInvalidArgumentEverywhere) {
  for (const char* method : {"Generate", "Complete", "Score", "Embed", "Tokenize", "Detokenize",
                             "ApplyChatTemplate", "ListModels", "Abort"}) {
    const std::string name = absl::StrCat("/bitshard.v1.Inference/", method);
    const grpc::Status broken = Raw(name, "\x0a\xff\xff\xff\xff\x7f");
    EXPECT_EQ(broken.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << method << ": " << broken.error_message();
    EXPECT_THAT(broken.error_message(), HasSubstr(absl::StrCat(method, "Request")));
  }
}

TEST_F(ValidationTest, InvalidUtf8IsInvalidArgument) {
  // Field 3 of Generate and Complete, 2 of Tokenize: a string of one byte 0xff.
  EXPECT_EQ(Raw("/bitshard.v1.Inference/Generate", "\x1a\x01\xff").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Raw("/bitshard.v1.Inference/Complete", "\x1a\x01\xff").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Raw("/bitshard.v1.Inference/Tokenize", "\x12\x01\xff").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(ValidationTest, UnknownFieldsAreIgnored) {
  EXPECT_TRUE(
      Raw("/bitshard.v1.Inference/Tokenize", std::string("\x12\x01z\xfa\x3f\x01z", 7)).ok());
}

TEST_F(ValidationTest, TooLongARequestIsCountedAndToldAsThat) {
  const auto refusal = [&](const std::function<void(v1::GenerateRequest&)>& change) {
    v1::GenerateRequest request = Request();
    change(request);
    return ErrorReason(Refused(request));
  };
  const std::vector<std::function<void(v1::GenerateRequest&)>> too_long = {
      [](auto& r) { r.set_text(std::string(64, 'a')); },
      [](auto& r) { r.set_text(std::string(100'000, 'a')); },
      [](auto& r) { r.set_max_tokens(62); },
      [](auto& r) { r.set_max_tokens(65); },
  };
  for (const auto& change : too_long) {
    EXPECT_EQ(refusal(change), "PROMPT_TOO_LONG");
    EXPECT_THAT(metrics_.Take(), ElementsAre(RejectReason::kPromptTooLong));
  }
  EXPECT_EQ(refusal([](auto& r) {
              r.set_max_tokens(65);
              r.mutable_sampling()->set_top_p(2);
            }),
            std::nullopt)
      << "more is wrong than its length";
  EXPECT_THAT(metrics_.Take(), ElementsAre(RejectReason::kBadRequest));
}

TEST_F(ValidationTest, EachWrongFieldIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  struct Case {
    std::string field;
    std::function<void(v1::GenerateRequest&)> change;
  };
  const std::vector<Case> cases = {
      {"prompt", [](auto& r) { r.clear_text(); }},
      {"text", [](auto& r) { r.set_text(""); }},
      {"text", [](auto& r) { r.set_text(std::string(64, 'a')); }},
      {"text", [](auto& r) { r.set_text(std::string(100'000, 'a')); }},
      {"tokens.ids", [](auto& r) { r.mutable_tokens(); }},
      {"tokens.ids[1]",
       [](auto& r) { r.mutable_tokens()->add_ids(1), r.mutable_tokens()->add_ids(257); }},
      {"tokens.ids[0]", [](auto& r) { r.mutable_tokens()->add_ids(4'000'000'000u); }},
      {"chat.messages", [](auto& r) { r.mutable_chat(); }},
      {"chat.messages[0].role",
       [](auto& r) { r.mutable_chat()->add_messages()->set_content("x"); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(0); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(62); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(0x7fffffff); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(0xffffffff); }},
      {"sampling.temperature", [&](auto& r) { r.mutable_sampling()->set_temperature(nan); }},
      {"sampling.temperature", [&](auto& r) { r.mutable_sampling()->set_temperature(inf); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-0.1f); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(1.01f); }},
      {"sampling.top_p", [&](auto& r) { r.mutable_sampling()->set_top_p(nan); }},
      {"sampling.min_p", [](auto& r) { r.mutable_sampling()->set_min_p(-1); }},
      {"sampling.presence_penalty", [](auto& r) { r.mutable_sampling()->set_presence_penalty(3); }},
      {"sampling.frequency_penalty",
       [&](auto& r) { r.mutable_sampling()->set_frequency_penalty(nan); }},
      {"sampling.repetition_penalty",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.logit_bias[5]",
       [&](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[5] = inf; }},
      {"sampling.logit_bias[257]",
       [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[257] = 1; }},
      {"sampling.logit_bias[5]",
       [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[5] = 100.5f; }},
      {"sampling.logit_bias",
       [](auto& r) {
         for (uint32_t i = 0; i < 1025; ++i) (*r.mutable_sampling()->mutable_logit_bias())[i] = 1;
       }},
      {"sampling.repetition_penalty",
       [&](auto& r) { r.mutable_sampling()->set_repetition_penalty(nan); }},
      {"sampling.repetition_penalty",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(2.1f); }},
      {"sampling.presence_penalty",
       [&](auto& r) { r.mutable_sampling()->set_presence_penalty(-inf); }},
      {"sampling.allowed_token_ids[1]",
       [](auto& r) {
         r.mutable_sampling()->add_allowed_token_ids(1),
             r.mutable_sampling()->add_allowed_token_ids(257);
       }},
      {"sampling.banned_token_ids[0]",
       [](auto& r) { r.mutable_sampling()->add_banned_token_ids(4'000'000'000u); }},
      {"sampling.allowed_token_ids",
       [](auto& r) {
         r.mutable_sampling()->add_allowed_token_ids(9);
         r.mutable_sampling()->add_banned_token_ids(9);
       }},
      {"sampling.allowed_token_ids",
       [](auto& r) {
         r.mutable_sampling()->add_allowed_token_ids(256);  // the end token
         r.mutable_stop()->set_min_tokens(1);
       }},
      {"sampling.banned_token_ids",
       [](auto& r) {
         for (uint32_t i = 0; i < 257; ++i) r.mutable_sampling()->add_banned_token_ids(i);
       }},
      {"stop.min_tokens",
       [](auto& r) {
         r.set_max_tokens(4);
         r.mutable_stop()->set_min_tokens(5);
       }},
      {"stop.strings",
       [](auto& r) {
         for (int i = 0; i < 17; ++i) r.mutable_stop()->add_strings("x");
       }},
      {"stop.strings",
       [](auto& r) {
         for (int i = 0; i < 100'000; ++i) r.mutable_stop()->add_strings("x");
       }},
      {"stop.strings[0]", [](auto& r) { r.mutable_stop()->add_strings(""); }},
      {"stop.strings[1]",
       [](auto& r) {
         r.mutable_stop()->add_strings("x"), r.mutable_stop()->add_strings(std::string(257, 'x'));
       }},
      {"stop.token_ids",
       [](auto& r) {
         for (int i = 0; i < 65; ++i) r.mutable_stop()->add_token_ids(1);
       }},
      {"stop.token_ids[0]", [](auto& r) { r.mutable_stop()->add_token_ids(257); }},
      {"output.top_logprobs", [](auto& r) { r.mutable_output()->set_top_logprobs(21); }},
      {"constraint", [](auto& r) { r.mutable_constraint(); }},
      {"choices", [](auto& r) { r.set_choices(0); }},
      {"choices", [](auto& r) { r.set_choices(129); }},
      {"choices", [](auto& r) { r.set_choices(1'000'000); }},
      {"request_id", [](auto& r) { r.set_request_id(""); }},
      {"request_id", [](auto& r) { r.set_request_id("with blank"); }},
      {"request_id", [](auto& r) { r.set_request_id("line\nbreak"); }},
      {"request_id", [](auto& r) { r.set_request_id(std::string(129, 'x')); }},
      {"service_class", [](auto& r) { r.set_service_class(static_cast<v1::ServiceClass>(99)); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Request();
    c.change(request);
    const absl::Status status = Refused(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field << ": " << status;
    EXPECT_THAT(BadFields(status), Contains(c.field)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
  }
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(ValidationTest, AllWrongFieldsAreNamedAtOnce) {
  v1::GenerateRequest request = Request();
  request.set_max_tokens(0);
  request.mutable_sampling()->set_temperature(-1);
  request.mutable_stop()->add_strings("");
  EXPECT_THAT(BadFields(Refused(request)),
              UnorderedElementsAre("max_tokens", "sampling.temperature", "stop.strings[0]"));
}

TEST_F(ValidationTest, WhatIsNotBuiltIsUnimplementedAndNamesTheField) {
  struct Case {
    std::string field;
    std::function<void(v1::GenerateRequest&)> change;
  };
  const std::vector<Case> cases = {
      {"adapter", [](auto& r) { r.set_adapter("lora"); }},
      {"media", [](auto& r) { r.add_media(); }},
      {"chat.messages[0].media",
       [](auto& r) {
         r.mutable_chat()->add_messages()->set_role("user"),
             r.mutable_chat()->mutable_messages(0)->add_media();
       }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Request();
    c.change(request);
    const absl::Status status = Refused(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << c.field << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
    EXPECT_THAT(std::string(status.message()), HasSubstr("built:"));
  }
}

TEST_F(ValidationTest, AServerWithoutAGrammarCompilerSaysSoOfConstraints) {
  v1::GenerateRequest request = Request();
  request.mutable_constraint()->set_regex("a*");
  const absl::Status status = Refused(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("constraint"));
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(ValidationTest, NeutralValuesOfUnbuiltFieldsAreFine) {
  v1::GenerateRequest request = Request();
  request.set_choices(1);
  request.set_adapter("");
  request.set_service_class(v1::SERVICE_CLASS_INTERACTIVE);
  request.mutable_sampling()->set_repetition_penalty(1);
  request.mutable_sampling()->set_presence_penalty(0);
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  engine_.Await().sink->OnEnd(FakeEngine::End(0));
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(ValidationTest, AnUnknownModelIsNotFoundAndTheKnownAreListed) {
  v1::GenerateRequest request = Request();
  request.set_model("other");
  const absl::Status status = Refused(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tiny, alias"));
  EXPECT_EQ(ErrorReason(status), "MODEL_NOT_FOUND");
  request.set_model("alias");
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  engine_.Await().sink->OnEnd(FakeEngine::End(0));
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(ValidationTest, TokenizeAndBack) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("h\xc3\xa9");
  tokenize.set_token_texts(true);
  v1::TokenizeResponse tokens;
  grpc::ClientContext a;
  ASSERT_TRUE(stub_->Tokenize(&a, tokenize, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ElementsAre('h', 0xc3, 0xa9));
  EXPECT_THAT(tokens.token_texts(), ElementsAre("h", "\xc3", "\xa9"));
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext b;
  ASSERT_TRUE(stub_->Detokenize(&b, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "h\xc3\xa9");
  detokenize.add_token_ids(257);
  grpc::ClientContext c;
  EXPECT_THAT(BadFields(FromGrpc(stub_->Detokenize(&c, detokenize, &text))),
              ElementsAre("token_ids[3]"));
}

TEST_F(ValidationTest, TokenizeIsBoundByBytesAndNotByTheContext) {
  v1::TokenizeRequest tokenize;
  const uint64_t beyond_context = uint64_t{model_.context_tokens} * 256 + 1;
  tokenize.set_text(std::string(beyond_context, 'x'));
  v1::TokenizeResponse tokens;
  grpc::ClientContext a;
  ASSERT_TRUE(stub_->Tokenize(&a, tokenize, &tokens).ok());
  EXPECT_EQ(static_cast<uint64_t>(tokens.token_ids_size()), beyond_context);
  tokenize.set_text(std::string(8'000'001, 'x'));
  grpc::ClientContext b;
  const absl::Status refused = FromGrpc(stub_->Tokenize(&b, tokenize, &tokens));
  EXPECT_THAT(BadFields(refused), ElementsAre("text"));
  EXPECT_THAT(refused.message(), HasSubstr("at most 8000000 bytes, not 8000001"));
}

TEST_F(ValidationTest, ChatsTooLongToFitAreNotRendered) {
  v1::ApplyChatTemplateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content(std::string(64 * 256 + 1, 'x'));
  v1::ApplyChatTemplateResponse response;
  grpc::ClientContext context;
  EXPECT_THAT(BadFields(FromGrpc(stub_->ApplyChatTemplate(&context, request, &response))),
              ElementsAre("chat.messages"));
}

TEST_F(ValidationTest, ApplyChatTemplateShowsThePrompt) {
  v1::ApplyChatTemplateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("yo");
  request.mutable_chat()->set_add_generation_prompt(false);
  v1::ApplyChatTemplateResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ApplyChatTemplate(&context, request, &response).ok());
  EXPECT_EQ(response.text(), "<user>yo");
  EXPECT_EQ(response.token_ids_size(), 8);
}

TEST_F(ValidationTest, ListModelsNamesThemAll) {
  v1::ListModelsResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ListModels(&context, v1::ListModelsRequest(), &response).ok());
  ASSERT_EQ(response.models_size(), 2);
  EXPECT_EQ(response.models(0).name(), "tiny");
  EXPECT_EQ(response.models(0).context_tokens(), 64u);
  EXPECT_THAT(response.models(0).weight_formats(), ElementsAre("f32", "q4_1"));
  EXPECT_TRUE(response.models(0).chat());
}

TEST_F(ValidationTest, AModelWithoutAUsableTemplateRefusesChatOnly) {
  model_.chat_template = nullptr;
  model_.chat_refusal = absl::UnimplementedError("its template needs macros");
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_role("user");
  const absl::Status status = Refused(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("macros"));
}

// The service parses a CompleteRequest as a GenerateRequest.
TEST(InferenceProto, CompleteRequestIsFieldForFieldAGenerateRequest) {
  const google::protobuf::Descriptor* generate = v1::GenerateRequest::descriptor();
  const google::protobuf::Descriptor* complete = v1::CompleteRequest::descriptor();
  ASSERT_EQ(generate->field_count(), complete->field_count());
  for (int i = 0; i < generate->field_count(); ++i) {
    google::protobuf::FieldDescriptorProto a, b;
    generate->field(i)->CopyTo(&a);
    complete->field(i)->CopyTo(&b);
    EXPECT_EQ(a.DebugString(), b.DebugString());
  }
}

}  // namespace
}  // namespace bitshard
