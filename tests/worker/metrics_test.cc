#include "worker/metrics.h"

#include <gtest/gtest.h>

namespace bitshard {
namespace {

TEST(WorkerMetrics, ServesAPageAndTakesEveryEvent) {
  const auto metrics = WorkerMetrics::Serve("127.0.0.1:0", "1.2.3", "avx2");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  (*metrics)->OnLoadFailed(absl::NotFoundError("gone"));
  (*metrics)->OnLoaded(1, 100, 90, absl::Seconds(2));
  (*metrics)->OnCacheAllocated(1, 1000);
  (*metrics)->OnStep(1, absl::Milliseconds(3), 4);
}

TEST(WorkerMetrics, AddressThatCannotBeBoundIsUnavailableAndNamed) {
  const absl::Status status = WorkerMetrics::Serve("203.0.113.1:1", "1.2.3", "avx2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("203.0.113.1:1"), std::string::npos) << status;
}

}  // namespace
}  // namespace bitshard
