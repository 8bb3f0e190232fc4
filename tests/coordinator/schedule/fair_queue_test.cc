// Who is next among those that wait.
#include "coordinator/schedule/fair_queue.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

namespace bitshard {
namespace {

class FairQueueTest : public testing::Test {
 protected:
  Sequence* Add(const std::string& tenant, uint32_t prompt = 10, int32_t priority = 0,
                bool batch = false) {
    SequenceSpec spec;
    spec.id = ++last_id_;
    spec.tenant = tenant;
    spec.priority = priority;
    spec.batch = batch;
    spec.prompt.assign(prompt, 1);
    spec.max_tokens = 100;
    auto sequence = std::make_unique<Sequence>(std::move(spec));
    Sequence* raw = sequence.get();
    sequences_[raw->id] = std::move(sequence);
    queue_.Join(raw);
    queue_.insert(raw);
    return raw;
  }
  void Leave(Sequence* sequence) {
    queue_.Leave(sequence);
    sequences_.erase(sequence->id);
  }
  // The next one gets its slot and its prompt computed.
  Sequence* Serve() {
    Sequence* next = queue_.first();
    queue_.erase(next);
    queue_.Charge(next, 0, next->n_prompt, std::nullopt);
    next->has_run = true;
    EXPECT_TRUE(queue_.CheckInvariants().ok()) << queue_.CheckInvariants();
    return next;
  }
  // Of so many served ones: the tenants' names, in order. They leave at once.
  std::string Order(int count) {
    std::string order;
    for (int i = 0; i < count; ++i) {
      Sequence* served = Serve();
      order += served->tenant;
      Leave(served);
    }
    return order;
  }
  double Service(const std::string& tenant) { return queue_.ServiceOf({}, tenant); }

  FairQueue queue_;
  SequenceId last_id_ = 0;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
};

TEST_F(FairQueueTest, OneTenantIsServedFirstComeFirstServed) {
  for (int i = 0; i < 5; ++i) Add("a", 1 + 10 * static_cast<uint32_t>(i % 2));
  for (SequenceId id = 1; id <= 5; ++id) EXPECT_EQ(Serve()->id, id);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(FairQueueTest, InOrderForetellsTheOrderOfService) {
  std::mt19937 random(3);
  queue_.set_weights({{"a", 2}, {"c", 0.5}});
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 30; ++i) {
      Add(std::string(1, static_cast<char>('a' + random() % 4)), 1 + random() % 40,
          static_cast<int32_t>(random() % 2), random() % 4 == 0);
    }
    // Some run, and of these some wait again.
    for (int i = 0; i < 6; ++i) {
      Sequence* served = Serve();
      if (i % 2 == 0) queue_.insert(served);
    }
    const std::vector<const Sequence*> order = queue_.InOrder();
    ASSERT_EQ(order.size(), queue_.size());
    for (const Sequence* next : order) ASSERT_EQ(Serve(), next) << "round " << round;
    while (!sequences_.empty()) Leave(sequences_.begin()->second.get());
    EXPECT_TRUE(queue_.InOrder().empty());
  }
}

// What came with a resumed request is computed as a prompt is, and paid for alike.
TEST_F(FairQueueTest, OutputsThatCameAlongArePaidForAsAPrompt) {
  SequenceSpec spec;
  spec.id = ++last_id_;
  spec.tenant = "a";
  spec.prompt.assign(10, 1);
  spec.outputs.assign(30, 2);
  spec.max_tokens = 100;
  Sequence resumed(std::move(spec));
  queue_.Join(&resumed);
  queue_.insert(&resumed);
  queue_.erase(&resumed);
  queue_.Charge(&resumed, 0, 25, std::nullopt);
  queue_.Charge(&resumed, 25, 15, /*output_index=*/30);
  EXPECT_EQ(Service("a"), 40 + FairQueue::kOutputWeight);
  queue_.Charge(&resumed, 0, 40, /*output_index=*/30);  // again, after a preemption
  EXPECT_EQ(Service("a"), 40 + FairQueue::kOutputWeight);
  queue_.Leave(&resumed);
}

TEST_F(FairQueueTest, ATenantWithAThousandRequestsDelaysAnotherByOneOfThem) {
  for (int i = 0; i < 1000; ++i) Add("a");
  EXPECT_EQ(Order(100), std::string(100, 'a'));
  Add("b");
  EXPECT_NE(Order(2).find('b'), std::string::npos);
}

TEST_F(FairQueueTest, TenantsShareTokensNotRequests) {
  for (int i = 0; i < 40; ++i) Add("a", 10);
  for (int i = 0; i < 40; ++i) Add("b", 30);
  const std::string order = Order(40);
  EXPECT_EQ(std::count(order.begin(), order.end(), 'a'), 30);
}

TEST_F(FairQueueTest, WeightsDivideTheService) {
  queue_.set_weights({{"a", 2}, {"c", 0.5}});
  for (int i = 0; i < 70; ++i) {
    Add("a");
    Add("b");
    Add("c");
  }
  const std::string order = Order(70);
  EXPECT_EQ(std::count(order.begin(), order.end(), 'a'), 40);
  EXPECT_EQ(std::count(order.begin(), order.end(), 'b'), 20);
  EXPECT_EQ(std::count(order.begin(), order.end(), 'c'), 10);
}

TEST_F(FairQueueTest, IdlingSavesUpNothing) {
  for (int i = 0; i < 50; ++i) Add("b");
  Add("a");
  const std::string warm_up = Order(21);
  EXPECT_EQ(std::count(warm_up.begin(), warm_up.end(), 'a'), 1);
  for (int i = 0; i < 20; ++i) Add("a");
  const std::string order = Order(20);
  EXPECT_EQ(std::count(order.begin(), order.end(), 'a'), 10) << order;
}

TEST_F(FairQueueTest, GoingAndComingBackWipesNoDebtOut) {
  for (int i = 0; i < 50; ++i) Add("b", 10);
  Add("a", 200);
  EXPECT_EQ(Order(2), "ba");  // equal accounts: first come; then the one at 0
  Add("a", 10);               // had been gone; has had 200 tokens
  EXPECT_EQ(Order(21), std::string(20, 'b') + "a");
}

TEST_F(FairQueueTest, AnEndlessRowOfNewTenantsStarvesNobody) {
  Add("old", 500);
  Sequence* big = Serve();
  Sequence* waits = Add("old");
  Add("n0");
  Add("n1");
  int served = 0;
  for (bool waiting = true; waiting;) {
    ASSERT_LT(++served, 1000) << "starved";
    Add(absl::StrCat("n", served + 1));
    Sequence* next = Serve();
    waiting = next != waits;
    Leave(next);
  }
  Leave(big);
}

TEST_F(FairQueueTest, LevelsComeInOrderAndHaveAccountsOfTheirOwn) {
  Add("a", 10, /*priority=*/0, /*batch=*/true);
  Add("a", 10, /*priority=*/5);
  Add("b", 10, /*priority=*/5);
  Add("c", 10, /*priority=*/-1);
  Add("d", 10, /*priority=*/-9, /*batch=*/true);
  for (int i = 0; i < 3; ++i) Add("a", 10, /*priority=*/-1);
  EXPECT_EQ(Order(8), "caaaabda");
}

TEST_F(FairQueueTest, WhoHasRunBeforeIsNextWhateverHisTenantHasHad) {
  Add("a", 500);
  Sequence* preempted = Serve();
  for (int i = 0; i < 3; ++i) Add("b");
  EXPECT_EQ(queue_.first()->tenant, "b");
  queue_.insert(preempted);
  EXPECT_EQ(queue_.first(), preempted);
  EXPECT_TRUE(queue_.CheckInvariants().ok());
}

TEST_F(FairQueueTest, EachTokenIsPaidOnceAndOutputsWeighMore) {
  Sequence* sequence = Add("a", 10);
  queue_.erase(sequence);
  queue_.Charge(sequence, 0, 6, std::nullopt);
  EXPECT_EQ(Service("a"), 6);
  queue_.Charge(sequence, 6, 4, 0);
  EXPECT_EQ(Service("a"), 10 + FairQueue::kOutputWeight);
  queue_.Charge(sequence, 10, 1, 1);
  EXPECT_EQ(Service("a"), 10 + 2 * FairQueue::kOutputWeight);
  // Preempted, computed again up to the output that was in flight.
  queue_.Charge(sequence, 0, 8, std::nullopt);
  queue_.Charge(sequence, 8, 3, 1);
  EXPECT_EQ(Service("a"), 10 + 2 * FairQueue::kOutputWeight);
}

TEST_F(FairQueueTest, WhatThePrefixCacheBroughtIsFree) {
  Sequence* sequence = Add("a", 100);
  queue_.erase(sequence);
  queue_.Charge(sequence, 96, 4, 0);
  EXPECT_EQ(Service("a"), 4 + FairQueue::kOutputWeight);
}

TEST_F(FairQueueTest, AccountsThatSayNothingAreForgotten) {
  for (int i = 0; i < 3; ++i) Add("b", 10);
  for (int i = 0; i < 2000; ++i) {
    Add(absl::StrCat("t", i), 10);
    Add("b", 10);
    Leave(Serve());
    Leave(Serve());
  }
  EXPECT_LT(queue_.accounts(), 10u);
  while (!queue_.empty()) Leave(Serve());
  EXPECT_EQ(queue_.accounts(), 0u);
}

// Tenants that always have something waiting differ by no more than one request, in weighted
// tokens, whatever their requests' sizes and whoever else comes and goes.
TEST(FairQueueProperty, BusyTenantsDifferByOneRequest) {
  constexpr uint32_t kMost = 200;
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    FairQueue queue;
    FairQueue::Weights weights;
    std::vector<std::string> busy;
    for (uint32_t i = 0; i < 2 + below(5); ++i) {
      busy.push_back(absl::StrCat("busy", i));
      weights[busy.back()] = 0.25 * (1 + below(8));
    }
    queue.set_weights(weights);
    std::map<std::string, double> served;
    std::vector<std::unique_ptr<Sequence>> all;
    const auto add = [&](const std::string& tenant) {
      SequenceSpec spec;
      spec.id = all.size() + 1;
      spec.tenant = tenant;
      spec.prompt.assign(1 + below(kMost), 1);
      spec.max_tokens = 1;
      all.push_back(std::make_unique<Sequence>(std::move(spec)));
      queue.Join(all.back().get());
      queue.insert(all.back().get());
    };
    for (const std::string& tenant : busy) add(tenant);
    for (int turn = 0; turn < 2000; ++turn) {
      if (below(4) == 0) add(absl::StrCat("guest", below(6)));
      Sequence* next = queue.first();
      const std::string tenant = next->tenant;
      if (weights.contains(tenant)) add(tenant);  // before the other goes: it waits all the time
      queue.erase(next);
      queue.Charge(next, 0, next->n_prompt, std::nullopt);
      served[tenant] += next->n_prompt;
      queue.Leave(next);
      ASSERT_TRUE(queue.CheckInvariants().ok()) << queue.CheckInvariants();
      for (const std::string& a : busy) {
        for (const std::string& b : busy) {
          ASSERT_LE(served[a] / weights[a] - served[b] / weights[b], kMost / weights[a])
              << a << " and " << b << " in turn " << turn;
        }
      }
    }
  }
}

}  // namespace
}  // namespace bitshard
