#include "worker/collective/timed.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

class Recorder : public CollectiveWatcher {
 public:
  void OnCollective(CollectiveOp op, uint64_t bytes, int64_t nanoseconds) override {
    ops.push_back(op);
    put_in.push_back(bytes);
    EXPECT_GE(nanoseconds, 0);
  }
  std::vector<CollectiveOp> ops;
  std::vector<uint64_t> put_in;
};

TEST(TimedCollective, PassesEverythingOnAndTellsOfIt) {
  Recorder recorder;
  const std::unique_ptr<Collective> timed = MakeTimedCollective(MakeSoloCollective(), &recorder);
  EXPECT_EQ(timed->rank(), 0);
  EXPECT_EQ(timed->world(), 1);
  std::vector<int64_t> sums = {1, 2, 3};
  EXPECT_TRUE(timed->AllReduceSum(absl::MakeSpan(sums)).ok());
  const std::vector<uint8_t> mine = {4, 5};
  std::vector<uint8_t> all(2);
  EXPECT_TRUE(timed->AllGather(mine, absl::MakeSpan(all)).ok());
  EXPECT_EQ(all, mine);
  EXPECT_TRUE(timed->Broadcast(absl::MakeSpan(all), 0).ok());
  EXPECT_EQ(recorder.ops,
            (std::vector<CollectiveOp>{CollectiveOp::kAllReduce, CollectiveOp::kAllGather,
                                       CollectiveOp::kBroadcast}));
  EXPECT_EQ(recorder.put_in, (std::vector<uint64_t>{24, 2, 2}));
  timed->Abort();
  EXPECT_EQ(timed->AllReduceSum(absl::MakeSpan(sums)).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bitshard
