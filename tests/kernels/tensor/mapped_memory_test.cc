// Parts of memory are told apart, zeroed, and given back.
#include "kernels/tensor/mapped_memory.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "kernels/tensor/buffer.h"

namespace bitshard {
namespace {

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

const MappedMemory* Find(const std::vector<MappedMemory>& all, const void* address) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const MappedMemory& m) {
    return m.address == reinterpret_cast<uintptr_t>(address);
  });
  return found == all.end() ? nullptr : &*found;
}

// Of the mapping that begins there, from the system's own list; -1 when none does.
long ResidentBytes(const void* address) {
  std::ifstream in("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    if (line.find('-') != std::string::npos && line[0] >= '0' && line[0] <= 'f' &&
        line.rfind("Rss:", 0) != 0 && line.find(':') > line.find('-')) {
      here = std::strtoull(line.c_str(), nullptr, 16) == reinterpret_cast<uintptr_t>(address);
    }
    if (here && line.rfind("Rss:", 0) == 0)
      return 1024 * std::strtol(line.c_str() + 4, nullptr, 10);
  }
  return -1;
}

TEST(MappedMemory, IsListedWhileItIsMappedInWholePages) {
  uint8_t* const memory = MapMemory(MemoryPart::kKvCache, 3 * PageBytes() + 1);
  ASSERT_NE(memory, nullptr);
  {
    const auto all = MappedMemories();
    const MappedMemory* mapping = Find(all, memory);
    ASSERT_NE(mapping, nullptr);
    EXPECT_EQ(mapping->bytes, 4 * PageBytes());
    EXPECT_STREQ(MemoryPartName(mapping->part), "kv_cache");
  }
  for (size_t i = 0; i < 4 * PageBytes(); i += 64) ASSERT_EQ(memory[i], 0);
  UnmapMemory(memory);
  EXPECT_EQ(Find(MappedMemories(), memory), nullptr);
  EXPECT_EQ(MapMemory(MemoryPart::kKvCache, 0), nullptr);
  EXPECT_EQ(MapMemory(MemoryPart::kKvCache, ~size_t{0}), nullptr);
}

TEST(MappedMemory, NeighboursStayMappingsOfTheirOwnAndOnlyTouchedPagesAreResident) {
  uint8_t* mappings[4];
  for (int i = 0; i < 4; ++i) mappings[i] = MapMemory(MemoryPart::kWorkspace, 8 * PageBytes());
  for (int i = 0; i < 4; ++i) {
    std::memset(mappings[i], 1, static_cast<size_t>(i) * PageBytes());
    EXPECT_EQ(ResidentBytes(mappings[i]), static_cast<long>(static_cast<size_t>(i) * PageBytes()))
        << i;
  }
  for (uint8_t* mapping : mappings) UnmapMemory(mapping);
}

// Weights and caches of 2 MiB and more may have huge pages: whole ones from the first byte on, and
// still mappings of their own.
TEST(MappedMemory, LargePartsBeginOnAHugePageAndEndWhereTheyShould) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = kHugePage + 3 * PageBytes();
  for (const MemoryPart part : {MemoryPart::kWeights, MemoryPart::kKvCache}) {
    uint8_t* const first = MapMemory(part, bytes);
    uint8_t* const second = MapMemory(part, bytes);
    for (uint8_t* const memory : {first, second}) {
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % kHugePage, 0u);
      const auto all = MappedMemories();
      ASSERT_NE(Find(all, memory), nullptr);
      EXPECT_EQ(Find(all, memory)->bytes, bytes);
      EXPECT_EQ(ResidentBytes(memory), 0);
      std::memset(memory, 1, bytes);
      EXPECT_EQ(ResidentBytes(memory), static_cast<long>(bytes));
    }
    UnmapMemory(first);
    UnmapMemory(second);
  }
}

TEST(MemoryArena, CutsAlignedZeroedPiecesAndTouchMakesThemResident) {
  MemoryArena arena(MemoryPart::kWeights, 10 * PageBytes());
  Buffer a(100, &arena), b(3 * PageBytes(), &arena), none(0, &arena);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % kBufferAlignment, 0u);
  EXPECT_EQ(b.data(), a.data() + 128);
  EXPECT_EQ(b.data()[3 * PageBytes() - 1], 0);
  EXPECT_EQ(arena.used(), 128 + 3 * PageBytes());
  arena.Touch();
  EXPECT_EQ(ResidentBytes(a.data()), static_cast<long>(4 * PageBytes()));
  Buffer moved = std::move(b);
  EXPECT_EQ(b.bytes(), 0u);
  EXPECT_EQ(moved.bytes(), 3 * PageBytes());
}

TEST(Buffer, InAMappingOfItsOwnIsGivenBackWithIt) {
  const void* address;
  {
    Buffer buffer(1000, MemoryPart::kWorkspace);
    address = buffer.data();
    EXPECT_NE(Find(MappedMemories(), address), nullptr);
    EXPECT_EQ(buffer.data()[999], 0);
    Buffer moved = std::move(buffer);
    EXPECT_NE(Find(MappedMemories(), address), nullptr);
  }
  EXPECT_EQ(Find(MappedMemories(), address), nullptr);
}

}  // namespace
}  // namespace bitshard
