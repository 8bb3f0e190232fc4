// The self-test must see what it is there to see.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thread_ranks.h"
#include "worker/collective/collective.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

enum class Fault { kNone, kReduce, kGather, kBroadcast };

// Flips one bit of what one operation delivers at messages of at least `from` elements.
class Faulty final : public Collective {
 public:
  Faulty(Collective& inner, Fault fault, size_t from) : inner_(inner), fault_(fault), from_(from) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  absl::Status AllReduceSum(absl::Span<int64_t> values) override {
    absl::Status status = inner_.AllReduceSum(values);
    if (fault_ == Fault::kReduce && values.size() >= from_) values[from_ - 1] ^= int64_t{1} << 40;
    return status;
  }
  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) override {
    absl::Status status = inner_.AllGather(mine, all);
    if (fault_ == Fault::kGather && mine.size() >= from_) all[all.size() - 1] ^= 1;
    return status;
  }
  absl::Status Broadcast(absl::Span<uint8_t> data, int root) override {
    absl::Status status = inner_.Broadcast(data, root);
    if (fault_ == Fault::kBroadcast && root != rank() && data.size() >= from_)
      data[from_ / 2] ^= 128;
    return status;
  }
  void Abort() override { inner_.Abort(); }

 private:
  Collective& inner_;
  const Fault fault_;
  const size_t from_;
};

TEST(SelfTest, PassesAlone) {
  EXPECT_EQ(SelfTestCollective(*MakeSoloCollective()), absl::OkStatus());
}

TEST(SelfTest, EveryKindOfCorruptionIsNamedAndAllRanksRefuse) {
  const std::pair<Fault, std::string> cases[] = {{Fault::kReduce, "all_reduce of"},
                                                 {Fault::kGather, "all_gather of"},
                                                 {Fault::kBroadcast, "broadcast of"}};
  for (size_t from : {size_t{5}, size_t{500}, size_t{65537}, size_t{200000}}) {
    for (const auto& [fault, name] : cases) {
      ThreadRanks ranks(3);
      std::vector<absl::Status> ends(3);
      ranks.Run([&, fault = fault](int rank, Collective& c) {
        Faulty faulty(c, rank == 1 ? fault : Fault::kNone, from);
        ends[rank] = SelfTestCollective(faulty);
      });
      EXPECT_EQ(ends[1].code(), absl::StatusCode::kInternal);
      EXPECT_THAT(ends[1].message(), HasSubstr(name));
      EXPECT_THAT(ends[1].message(), HasSubstr("should be"));
      for (int r : {0, 2}) {
        EXPECT_EQ(ends[r].code(), absl::StatusCode::kInternal);
        EXPECT_THAT(ends[r].message(), HasSubstr("rank 1 of 3"));
      }
    }
  }
}

}  // namespace
}  // namespace bitshard
