// What a killed process leaves behind, and who takes it away.

#include "coordinator/tools/temporary_folder.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using ::testing::StartsWith;

class TemporaryFolderTest : public ::testing::Test {
 protected:
  TemporaryFolderTest() {
    parent_ = testing::TempDir() + "/folders-XXXXXX";
    EXPECT_NE(mkdtemp(parent_.data()), nullptr);
    setenv("TMPDIR", parent_.c_str(), 1);
  }
  ~TemporaryFolderTest() override { std::filesystem::remove_all(parent_); }

  static TemporaryFolder Make() {
    auto folder = TemporaryFolder::Make("test");
    EXPECT_TRUE(folder.ok()) << folder.status();
    return *std::move(folder);
  }
  static bool Exists(const std::string& path) { return std::filesystem::exists(path); }
  static mode_t ModeOf(const std::string& path) {
    struct stat found = {};
    EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 0777;
  }

  std::string parent_;
};

TEST_F(TemporaryFolderTest, IsOursAloneAndGoesWithItsObject) {
  std::string path;
  {
    TemporaryFolder folder = Make();
    path = folder.path();
    EXPECT_THAT(path, StartsWith(parent_ + "/bitshard-test-"));
    EXPECT_EQ(ModeOf(path), 0700u);
    const TemporaryFolder other = Make();
    EXPECT_NE(other.path(), path);
    EXPECT_TRUE(Exists(path)) << "its owner lives";
    folder = Make();
    EXPECT_FALSE(Exists(path));
    path = folder.path();
    EXPECT_TRUE(Exists(path));
  }
  EXPECT_FALSE(Exists(path));
}

TEST_F(TemporaryFolderTest, OfAKilledProcessIsTakenAwayByTheNext) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto folder = TemporaryFolder::Make("test");
    if (!folder.ok() || !WritePrivateFile(folder->path() + "/secret", "x").ok()) _exit(1);
    const std::string& path = folder->path();
    if (write(told[1], path.data(), path.size()) < 0) _exit(1);
    close(told[1]);
    while (true) pause();
  }
  close(told[1]);
  std::string path;
  char part[256];
  for (ssize_t got; (got = read(told[0], part, sizeof part)) > 0;)
    path.append(part, static_cast<size_t>(got));
  close(told[0]);
  ASSERT_TRUE(Exists(path + "/secret")) << path;

  { const TemporaryFolder meanwhile = Make(); }
  EXPECT_TRUE(Exists(path + "/secret")) << "its process lives";
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(Exists(path + "/secret")) << "nobody has come by yet";
  const TemporaryFolder next = Make();
  EXPECT_FALSE(Exists(path));
  EXPECT_TRUE(Exists(next.path()));
}

TEST_F(TemporaryFolderTest, WhatIsNoFolderOfOursStays) {
  const std::string kept[] = {
      parent_ + "/bitshard-no-owner",  // being made, or somebody else's by the name
      parent_ + "/other",
      parent_ + "/target",
  };
  for (const std::string& folder : kept) std::filesystem::create_directory(folder);
  for (const std::string& folder : {kept[1], kept[2]}) std::ofstream(folder + "/owner") << "x";
  std::filesystem::create_directory_symlink(kept[2], parent_ + "/bitshard-link");
  std::ofstream(parent_ + "/bitshard-file") << "x";
  { const TemporaryFolder folder = Make(); }
  for (const std::string& folder : kept) EXPECT_TRUE(Exists(folder)) << folder;
  EXPECT_TRUE(Exists(kept[2] + "/owner"));
  EXPECT_TRUE(Exists(parent_ + "/bitshard-file"));
}

TEST_F(TemporaryFolderTest, WhereNoneCanBeMadeSaysSo) {
  setenv("TMPDIR", "/proc", 1);
  const absl::Status status = TemporaryFolder::Make("test").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("/proc/bitshard-test-"), std::string::npos) << status;
  EXPECT_NE(status.message().find("TMPDIR"), std::string::npos) << status;
}

TEST_F(TemporaryFolderTest, APrivateFileIsNewAndOursAlone) {
  const std::string path = parent_ + "/secret";
  umask(0);
  ASSERT_TRUE(WritePrivateFile(path, "word").ok());
  EXPECT_EQ(ModeOf(path), 0600u);
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  EXPECT_EQ(content.str(), "word");
  EXPECT_FALSE(WritePrivateFile(path, "again").ok());
}

}  // namespace
}  // namespace bitshard
