// Lists of flags for other programs, whose values may have commas.

#include "coordinator/tools/local_service.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SplitFlags, ACommaEndsAFlagOnlyWhereTheNextOneBegins) {
  EXPECT_THAT(SplitFlags(""), IsEmpty());
  EXPECT_THAT(SplitFlags("--isa=avx2"), ElementsAre("--isa=avx2"));
  EXPECT_THAT(SplitFlags("--shares=3,2"), ElementsAre("--shares=3,2"));
  EXPECT_THAT(SplitFlags("--shares=3,2,1,--max-running=8,--tenant-weights=a=1,b=2"),
              ElementsAre("--shares=3,2,1", "--max-running=8", "--tenant-weights=a=1,b=2"));
  EXPECT_THAT(SplitFlags("--a,--b"), ElementsAre("--a", "--b"));
}

}  // namespace
}  // namespace bitshard
