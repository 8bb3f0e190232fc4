#include "bitshard_client/answer.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace bitshard::client {
namespace {

CallStatus Failed(grpc::StatusCode code) {
  CallStatus status;
  status.code = code;
  return status;
}

v1::GenerateResponse Delta(const std::string& text) {
  v1::GenerateResponse message;
  message.set_text(text);
  return message;
}

v1::GenerateResponse Tokens(uint32_t index, std::vector<uint32_t> ids) {
  v1::GenerateResponse message;
  message.set_token_index(index);
  message.set_token_count(static_cast<uint32_t>(ids.size()));
  message.mutable_token_ids()->Add(ids.begin(), ids.end());
  return message;
}

v1::GenerateRequest Request() {
  v1::GenerateRequest request;
  request.set_text("x");
  request.set_request_id("mine");
  return request;
}

TEST(Answer, AsksForIdsAndKeepsThemFromACallerWhoDidNot) {
  Answer answer(Request(), 5);
  EXPECT_TRUE(answer.Request().output().token_ids());
  std::vector<v1::GenerateResponse> given;
  ASSERT_TRUE(answer.Take(Tokens(0, {7, 8}), &given).ok());
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].token_ids_size(), 0);
  EXPECT_EQ(given[0].token_count(), 2u);
  EXPECT_EQ(answer.ResumeState(0, 0).output_ids_size(), 2);
  EXPECT_EQ(answer.ResumeState(0, /*pending=*/1).output_ids_size(), 1);
}

TEST(Answer, DeltasWaitForTheTokensThatCoverThem) {
  Answer answer(Request(), 5);
  std::vector<v1::GenerateResponse> given;
  v1::GenerateResponse first = Delta("a");
  first.mutable_started()->set_seed(3);
  ASSERT_TRUE(answer.Take(first, &given).ok());
  EXPECT_TRUE(given.empty());
  // It broke before they were covered: they come again, and are given once.
  EXPECT_TRUE(answer.Broke(Failed(grpc::StatusCode::UNAVAILABLE)).has_value());
  EXPECT_EQ(answer.Request().resume().output_ids_size(), 0);
  EXPECT_EQ(answer.Request().resume().seed(), 3u);
  EXPECT_TRUE(answer.Request().resume().supersede());
  ASSERT_TRUE(answer.Take(first, &given).ok());
  ASSERT_TRUE(answer.Take(Tokens(0, {7}), &given).ok());
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[0].text(), "a");
  EXPECT_TRUE(given[0].has_started());
  EXPECT_EQ(given[1].token_count(), 1u);
  EXPECT_FALSE(answer.complete());
}

TEST(Answer, WhatComesTwiceOrLeavesAGapIsAFault) {
  for (const uint32_t index : {0u, 2u}) {
    Answer answer(Request(), 5);
    std::vector<v1::GenerateResponse> given;
    ASSERT_TRUE(answer.Take(Tokens(0, {7}), &given).ok());
    EXPECT_EQ(answer.Take(Tokens(index, {8}), &given).code, grpc::StatusCode::DATA_LOSS);
    EXPECT_EQ(given.size(), 1u);
  }
}

TEST(Answer, GoesOnAfterWhatPassesOnly) {
  EXPECT_FALSE(Answer(Request(), 0).Broke(Failed(grpc::StatusCode::UNAVAILABLE)).has_value());
  for (const grpc::StatusCode code :
       {grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::DEADLINE_EXCEEDED,
        grpc::StatusCode::CANCELLED, grpc::StatusCode::INTERNAL,
        grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    EXPECT_FALSE(Answer(Request(), 5).Broke(Failed(code)).has_value()) << code;
  }
  // An id of the caller's own may be live by right; a drawn one is an earlier try.
  EXPECT_FALSE(Answer(Request(), 5).Broke(Failed(grpc::StatusCode::ALREADY_EXISTS)).has_value());
  v1::GenerateRequest without_id;
  EXPECT_TRUE(Answer(without_id, 5).Broke(Failed(grpc::StatusCode::ALREADY_EXISTS)).has_value());
  CallStatus slow = Failed(grpc::StatusCode::RESOURCE_EXHAUSTED);
  slow.reason = "SLOW_READER";
  Answer read(Request(), 5);
  read.Accepted();
  EXPECT_TRUE(read.Broke(slow).has_value());
  // What has begun waits out an overload, for as long as the service says.
  Answer begun(Request(), 5);
  begun.Accepted();
  ASSERT_TRUE(begun.Broke(Failed(grpc::StatusCode::UNAVAILABLE)).has_value());
  CallStatus full = Failed(grpc::StatusCode::RESOURCE_EXHAUSTED);
  full.retry_after = std::chrono::milliseconds(1500);
  EXPECT_EQ(begun.Broke(full), std::chrono::milliseconds(1500));
  EXPECT_EQ(begun.resumes(), 2);
}

TEST(Answer, EachChoiceGoesOnByACallOfItsOwn) {
  v1::GenerateRequest request = Request();
  request.set_choices(3);
  Answer answer(request, 5);
  std::vector<v1::GenerateResponse> given;
  v1::GenerateResponse end = Tokens(0, {7});
  end.set_choice(1);
  end.mutable_finished();
  ASSERT_TRUE(answer.Take(end, &given).ok());
  ASSERT_TRUE(answer.Broke(Failed(grpc::StatusCode::UNAVAILABLE)).has_value());
  for (const uint32_t choice : {0u, 2u}) {
    EXPECT_FALSE(answer.complete());
    EXPECT_EQ(answer.Request().resume().choice(), choice);
    EXPECT_FALSE(answer.WentOn().ok());
    end.set_choice(choice);
    ASSERT_TRUE(answer.Take(end, &given).ok());
    EXPECT_TRUE(answer.WentOn().ok());
  }
  EXPECT_TRUE(answer.complete());
  EXPECT_EQ(given.size(), 3u);
}

TEST(Answer, AStatusIsOfNoChoice) {
  v1::GenerateResponse status;
  status.mutable_status();
  status.mutable_started()->set_seed(3);
  v1::GenerateResponse end = Tokens(0, {7});
  end.mutable_finished();
  std::vector<v1::GenerateResponse> given;

  v1::GenerateRequest two = Request();
  two.set_choices(2);
  Answer answer(two, 5);
  ASSERT_TRUE(answer.Take(end, &given).ok());
  ASSERT_TRUE(answer.Take(status, &given).ok());
  EXPECT_TRUE(given.back().has_status());
  end.set_choice(1);
  ASSERT_TRUE(answer.Take(end, &given).ok());
  EXPECT_TRUE(answer.complete());

  v1::GenerateRequest request = Request();
  request.mutable_resume()->set_choice(1);
  Answer resumed(request, 5);
  ASSERT_TRUE(resumed.Take(status, &given).ok());
  EXPECT_TRUE(given.back().has_status());
  EXPECT_EQ(resumed.started()->seed(), 3u);
  ASSERT_TRUE(resumed.Take(end, &given).ok());
  EXPECT_TRUE(resumed.complete());
}

TEST(Answer, BreaksAreCountedFromTheLastToken) {
  using std::chrono::milliseconds;
  const CallStatus broken = Failed(grpc::StatusCode::UNAVAILABLE);
  v1::GenerateResponse status;
  status.mutable_status();
  std::vector<v1::GenerateResponse> given;
  Answer answer(Request(), 2);
  for (uint32_t index = 0; index < 10; ++index) {  // each brings a token
    answer.Request();
    ASSERT_TRUE(answer.Take(Tokens(index, {7}), &given).ok());
    const auto delay = answer.Broke(broken);
    ASSERT_TRUE(delay.has_value());
    EXPECT_LE(*delay, milliseconds(100));
  }
  milliseconds last{0};
  for (int i = 0; i < 20; ++i) {  // the service is away
    answer.Request();
    const auto delay = answer.Broke(broken);
    ASSERT_TRUE(delay.has_value());
    EXPECT_LE(*delay, milliseconds(5000));
    last = *delay;
  }
  EXPECT_GE(last, milliseconds(2500));
  EXPECT_EQ(answer.resumes(), 30);
  answer.Request();
  ASSERT_TRUE(answer.Take(status, &given).ok());
  EXPECT_TRUE(answer.Broke(broken).has_value());  // the second without a token
  answer.Request();
  ASSERT_TRUE(answer.Take(status, &given).ok());
  EXPECT_FALSE(answer.Broke(broken).has_value());
}

TEST(Answer, WhatTheServiceNeverTookIsLeftToGrpc) {
  Answer never(Request(), 5);
  never.Request();
  EXPECT_FALSE(never.Broke(Failed(grpc::StatusCode::UNAVAILABLE)).has_value());
  Answer answer(Request(), 2);
  for (int i = 0; i < 3; ++i) {
    answer.Request();
    answer.Accepted();  // and broke before its first message
    EXPECT_EQ(answer.Broke(Failed(grpc::StatusCode::UNAVAILABLE)).has_value(), i < 2);
  }
}

TEST(Answer, TheEndTellsWhatCameAndWhatBrokeIt) {
  Answer answer(Request(), 2);
  std::vector<v1::GenerateResponse> given;
  ASSERT_TRUE(answer.Take(Tokens(0, {7, 8}), &given).ok());
  CallStatus broken = Failed(grpc::StatusCode::UNAVAILABLE);
  broken.message = "gone";
  ASSERT_TRUE(answer.Broke(broken).has_value());
  CallStatus late = Failed(grpc::StatusCode::DEADLINE_EXCEEDED);
  late.message = "late";
  answer.Tell(std::chrono::milliseconds(320), &late);
  EXPECT_EQ(late.message,
            "late (after 0.3 s, 2 tokens, 1 resumes; last broken by UNAVAILABLE: gone)");
  CallStatus cancelled = Failed(grpc::StatusCode::CANCELLED);
  answer.Tell(std::chrono::milliseconds(320), &cancelled);
  EXPECT_EQ(cancelled.message, "");
}

// A service with an answer of groups: deltas, and then the message that covers their tokens.
// Streams break anywhere.
TEST(Answer, PiecesComeOnceWhereverStreamsBreak) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    std::vector<std::vector<std::string>> deltas;  // of each token
    std::string whole;
    const int tokens = 1 + draw(20);
    for (int i = 0; i < tokens; ++i) {
      deltas.emplace_back();
      for (int k = draw(4); k > 0; --k) {
        deltas.back().push_back(std::string(1, static_cast<char>('a' + draw(26))));
        whole += deltas.back().back();
      }
    }
    Answer answer(Request(), 100);
    std::vector<v1::GenerateResponse> given;
    while (!answer.complete()) {
      const v1::GenerateRequest request = answer.Request();
      answer.Accepted();
      std::vector<v1::GenerateResponse> stream;
      for (int token = request.resume().output_ids_size(); token < tokens;) {
        const int group =
            std::min(tokens - token, 1 + draw(3));  // a slow reader's tokens share messages
        std::vector<uint32_t> ids;
        for (int i = token; i < token + group; ++i) {
          for (const std::string& text : deltas[i]) stream.push_back(Delta(text));
          ids.push_back(static_cast<uint32_t>(100 + i));
        }
        v1::GenerateResponse covers = Tokens(static_cast<uint32_t>(token), ids);
        if (!stream.empty() && stream.back().token_count() == 0) {
          covers.set_text(stream.back().text());
          stream.pop_back();
        }
        stream.push_back(covers);
        token += group;
      }
      stream.emplace_back().mutable_finished();
      const int cut = draw(static_cast<int>(stream.size()) + 3);
      for (int i = 0; i < cut && i < static_cast<int>(stream.size()); ++i)
        ASSERT_TRUE(answer.Take(stream[i], &given).ok()) << "seed " << seed;
      if (answer.complete()) break;
      ASSERT_TRUE(answer.Broke(Failed(grpc::StatusCode::UNAVAILABLE)).has_value());
    }
    std::string text;
    uint32_t count = 0;
    for (const v1::GenerateResponse& message : given) {
      text += message.text();
      if (message.token_count() > 0) {
        EXPECT_EQ(message.token_index(), count) << "seed " << seed;
      }
      count += message.token_count();
    }
    EXPECT_EQ(text, whole) << "seed " << seed;
    EXPECT_EQ(count, static_cast<uint32_t>(tokens)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace bitshard::client
