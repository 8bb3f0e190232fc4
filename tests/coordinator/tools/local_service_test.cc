// Lists of flags for other programs, whose values may have commas; the token that they share.

#include "coordinator/tools/local_service.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

TEST(SplitFlags, ACommaEndsAFlagOnlyWhereTheNextOneBegins) {
  EXPECT_THAT(SplitFlags(""), IsEmpty());
  EXPECT_THAT(SplitFlags("--isa=avx2"), ElementsAre("--isa=avx2"));
  EXPECT_THAT(SplitFlags("--shares=3,2"), ElementsAre("--shares=3,2"));
  EXPECT_THAT(SplitFlags("--shares=3,2,1,--max-running=8,--tenant-weights=a=1,b=2"),
              ElementsAre("--shares=3,2,1", "--max-running=8", "--tenant-weights=a=1,b=2"));
  EXPECT_THAT(SplitFlags("--a,--b"), ElementsAre("--a", "--b"));
}

TEST(LocalService, ItsTokenIsForNoOtherUsersEyesAndGoesWithIt) {
  std::string parent = testing::TempDir() + "/service-XXXXXX";
  ASSERT_NE(mkdtemp(parent.data()), nullptr);
  setenv("TMPDIR", parent.c_str(), 1);
  const std::string program = parent + "/bitshard-coordinator";
  std::ofstream(program) << "#!/bin/sh\nsleep 60\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  LocalServiceOptions options;
  options.bin_dir = parent;
  std::string token_file;
  {
    LocalService service(options);
    const absl::Status started = service.StartCoordinator();
    ASSERT_TRUE(started.ok()) << started;
    token_file = service.token_path();
    EXPECT_EQ(std::filesystem::status(token_file).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::string token;
    std::ifstream(token_file) >> token;
    EXPECT_THAT(token, MatchesRegex("[0-9a-f]{64}"));
  }
  EXPECT_FALSE(std::filesystem::exists(token_file));
  std::filesystem::remove_all(parent);
}

}  // namespace
}  // namespace bitshard
