#include "tests/gpu/counter_join.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<LaunchCounters> Emulated() {
  return {{.launch = "tiles",
           .launches = 1,
           .blocks = 64,
           .read_sectors = 1000,
           .write_sectors = 128,
           .shared_waves = 50,
           .shared_conflicts = 0,
           .mma = 4096,
           .unique_bytes = 32000},
          {.launch = "two of them", .launches = 2, .blocks = 3, .read_sectors = 10}};
}

// What ncu prints: its own lines, the program's, a head, units, a row a kernel.
std::string Ncu(const std::string& rows) {
  return "==PROF== Connected to process 17 (/bin/kernel_cases)\n"
         "9 launches\n"
         "==PROF== Disconnected from process 17\n"
         "\"ID\",\"Process ID\",\"Kernel Name\",\"Block Size\",\"dram__bytes_read.sum\","
         "\"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum\","
         "\"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum\","
         "\"l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum\","
         "\"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum\",\"launch__grid_size\","
         "\"smsp__inst_executed.sum\"\n"
         "\"\",\"\",\"\",\"\",\"byte\",\"\",\"sector\",\"sector\",\"sector\",\"\",\"inst\"\r\n" +
         rows;
}

const char kRows[] =
    "\"0\",\"17\",\"void Tiles<4, \"\"x\"\">(Launch)\",\"(256, 1, 1)\",\"32,640\",\"0\",\"900\","
    "\"100\",\"256\",\"64\",\"12,345\"\n"
    "\"1\",\"17\",\"First\",\"(32, 1, 1)\",\"0\",\"7\",\"4\",\"0\",\"0\",\"1\",\"5\"\n"
    "\"2\",\"17\",\"Second\",\"(32, 1, 1)\",\"0\",\"0\",\"6\",\"0\",\"0\",\"2\",\"5\"\n";

const JoinedFigure& FigureOf(const std::vector<JoinedFigure>& figures, const std::string& launch,
                             const std::string& name) {
  for (const JoinedFigure& figure : figures) {
    if (figure.launch == launch && figure.figure == name) return figure;
  }
  ADD_FAILURE() << launch << ": no " << name;
  return figures[0];
}

TEST(CounterJoin, LaysEachFigureBesideNcus) {
  const absl::StatusOr<CounterJoin> join = JoinCounters(Emulated(), Ncu(kRows));
  ASSERT_TRUE(join.ok()) << join.status();
  EXPECT_TRUE(join->mismatches.empty());
  const std::vector<JoinedFigure>& joined = join->figures;
  const JoinedFigure& loads = FigureOf(joined, "tiles", "global load sectors");
  EXPECT_EQ(loads.kernel, "void Tiles<4, \"x\">(Launch)");
  EXPECT_EQ(loads.measured, 1000);  // loads and copies to shared memory
  EXPECT_EQ(loads.ratio, 1);
  EXPECT_TRUE(loads.trusted);

  const JoinedFigure& stores = FigureOf(joined, "tiles", "global store sectors");
  EXPECT_EQ(stores.ratio, 2);
  EXPECT_FALSE(stores.trusted);
  EXPECT_THAT(JoinText(stores), HasSubstr("\t128\t256\t2.000\tNOT TRUSTED"));

  EXPECT_TRUE(FigureOf(joined, "tiles", "shared conflicts").trusted);  // none in both
  EXPECT_FALSE(FigureOf(joined, "two of them", "shared conflicts").trusted);
  EXPECT_DOUBLE_EQ(FigureOf(joined, "tiles", "DRAM bytes read, of all bytes once").ratio, 1.02);

  // A metric that this ncu does not have, and a figure that the emulator does not.
  const JoinedFigure& mma = FigureOf(joined, "tiles", "mma instructions");
  EXPECT_FALSE(mma.compared);
  EXPECT_THAT(JoinText(mma), HasSubstr("not compared"));
  const JoinedFigure& instructions = FigureOf(joined, "tiles", "instructions");
  EXPECT_FALSE(instructions.compared);
  EXPECT_EQ(instructions.measured, 12345);

  const JoinedFigure& sum = FigureOf(joined, "two of them", "global load sectors");
  EXPECT_EQ(sum.measured, 10);
  EXPECT_EQ(sum.kernel, "First + Second");
}

// One launch with another grid, or without a row, loses no figure of the others.
TEST(CounterJoin, RowsThatAreNotTheTablesAreSaid) {
  const std::string rows = kRows;
  const size_t first = rows.find('\n') + 1;
  const auto join = [](const std::string& csv) {
    const absl::StatusOr<CounterJoin> joined = JoinCounters(Emulated(), Ncu(csv));
    EXPECT_TRUE(joined.ok()) << joined.status();
    return *joined;
  };
  CounterJoin joined = join(absl::StrReplaceAll(rows, {{"\"64\"", "\"32\""}}));
  EXPECT_THAT(joined.mismatches, ElementsAre(HasSubstr("tiles: ncu saw 32 blocks")));
  const JoinedFigure& other = FigureOf(joined.figures, "tiles", "global load sectors");
  EXPECT_FALSE(other.compared);
  EXPECT_EQ(other.measured, 1000);
  EXPECT_THAT(JoinText(other), HasSubstr("\t1000\t1000\t\tOTHER GRID"));
  EXPECT_TRUE(FigureOf(joined.figures, "two of them", "global load sectors").trusted);

  joined = join(rows.substr(0, first));
  EXPECT_THAT(joined.mismatches,
              ElementsAre(HasSubstr("two of them: ncu saw 0 blocks of no kernel"),
                          HasSubstr("ncu has 1 kernels, the emulator 3")));
  EXPECT_TRUE(FigureOf(joined.figures, "tiles", "global load sectors").trusted);
  EXPECT_FALSE(FigureOf(joined.figures, "two of them", "global load sectors").compared);

  joined = join(rows + rows.substr(0, first));
  EXPECT_THAT(joined.mismatches, ElementsAre("ncu has 4 kernels, the emulator 3"));
}

TEST(CounterJoin, WhatHasNoKernelsIsRefused) {
  const auto error_of = [](const std::string& csv) {
    return std::string(JoinCounters(Emulated(), csv).status().message());
  };
  EXPECT_THAT(error_of("==ERROR== ERR_NVGPUCTRPERM\n"), HasSubstr("no line"));
  EXPECT_THAT(error_of(Ncu("")), HasSubstr("no line"));
  EXPECT_THAT(error_of(Ncu("\"0\",\"17\"\n")), HasSubstr("a row of 2 fields"));
}

TEST(CounterJoin, TablesComeBackAndBadOnesAreRefused) {
  const std::string table = CountersTable(Emulated());
  const absl::StatusOr<std::vector<LaunchCounters>> back = ParseCountersTable(table);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(CountersTable(*back), table);
  for (const std::string& bad : {std::string("launch\n"), table + "three\t1\n",
                                 table + "x\t1\t1\t1\t1\t1\t1\t1\t-1\n", std::string()})
    EXPECT_EQ(ParseCountersTable(bad).status().code(), absl::StatusCode::kDataLoss) << bad;
}

// With the names that the join looks for.
TEST(CounterJoin, AsksForEveryMetricOnce) {
  const std::vector<std::string> metrics = NcuMetrics();
  EXPECT_EQ(metrics[0], "launch__grid_size");
  for (const std::string& metric : metrics)
    EXPECT_EQ(std::count(metrics.begin(), metrics.end(), metric), 1) << metric;
  EXPECT_GE(metrics.size(), 7u);
}

}  // namespace
}  // namespace bitshard
