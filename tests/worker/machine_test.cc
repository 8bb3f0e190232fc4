#include "worker/machine.h"

#include <gtest/gtest.h>

#include "worker/options.h"

namespace bitshard {
namespace {

TEST(Machine, TellsMemoryBandwidthAndHost) {
  EXPECT_GT(AvailableMemoryBytes(), 1u << 20);
  EXPECT_GT(MeasureReadBandwidth(), 1u << 20);
  EXPECT_EQ(SharedMemoryHost(), SharedMemoryHost());
  EXPECT_NE(RandomInstance(), RandomInstance());
  EXPECT_EQ(RandomInstance().size(), 16u);
}

TEST(ParseMemory, TakesBytesUnitsAndShares) {
  EXPECT_EQ(*ParseMemory("1048576", 0), 1u << 20);
  EXPECT_EQ(*ParseMemory("512MiB", 0), 512u << 20);
  EXPECT_EQ(*ParseMemory("1.5G", 0), 3u << 29);
  EXPECT_EQ(*ParseMemory(" 80% ", 1000), 800u);
}

TEST(ParseMemory, RefusesWhatIsNoAmount) {
  for (const char* text : {"", "GiB", "-1", "0", "nan", "inf", "1e40", "5 apples"}) {
    EXPECT_FALSE(ParseMemory(text, 1000).ok()) << text;
  }
}

}  // namespace
}  // namespace bitshard
