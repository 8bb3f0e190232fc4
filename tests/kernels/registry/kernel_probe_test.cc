// The probe's figures become an order, and a bind follows it.
#include "kernels/registry/kernel_probe.h"

#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/registry/linear.h"

namespace bitshard {
namespace {

ProbeFigure Figure(unsigned form, Isa isa, int tokens, double gmacs) {
  return {.kernel = "k", .form = form, .isa = isa, .tokens = tokens, .gmacs_per_s = gmacs};
}

TEST(KernelOrder, WidestComesFirstWithoutFigures) {
  for (const unsigned form : {kFormF32, kFormA16, kFormA8}) {
    EXPECT_EQ(KernelOrder().Place(form, Isa::kAvx512Vnni), 0);
    EXPECT_EQ(KernelOrder().Place(form, Isa::kAvx2), 1);
    EXPECT_EQ(KernelOrder().Place(form, Isa::kScalar), 2);
    EXPECT_EQ(KernelOrder().WhySlower(form, Isa::kAvx512Vnni, Isa::kAvx2), "");
  }
}

TEST(KernelOrder, ANarrowerSetGoesFirstWhenItIsFasterByMoreThanNoise) {
  const KernelOrder order =
      OrderOf({Figure(kFormA16, Isa::kScalar, 1, 1), Figure(kFormA16, Isa::kAvx2, 1, 12),
               Figure(kFormA16, Isa::kAvx2, 16, 33), Figure(kFormA16, Isa::kAvx512Vnni, 1, 10),
               Figure(kFormA16, Isa::kAvx512Vnni, 16, 30), Figure(kFormF32, Isa::kAvx2, 1, 10.2),
               Figure(kFormF32, Isa::kAvx512Vnni, 1, 10)});
  EXPECT_EQ(order.Place(kFormA16, Isa::kAvx2), 0);
  EXPECT_EQ(order.Place(kFormA16, Isa::kAvx512Vnni), 1);
  EXPECT_EQ(order.Place(kFormA16, Isa::kScalar), 2);
  EXPECT_NE(order.WhySlower(kFormA16, Isa::kAvx512Vnni, Isa::kAvx2).find("avx2 19.9"),
            std::string::npos)
      << order.WhySlower(kFormA16, Isa::kAvx512Vnni, Isa::kAvx2);
  EXPECT_EQ(order.WhySlower(kFormA16, Isa::kAvx2, Isa::kScalar), "");
  EXPECT_EQ(order.Place(kFormF32, Isa::kAvx512Vnni), 0) << "two hundredths are noise";
  EXPECT_EQ(order.Place(kFormA8, Isa::kAvx512Vnni), 0) << "nothing was measured";
}

TEST(KernelOrder, OneBadFigureMovesNothing) {
  const KernelOrder order = OrderOf(
      {Figure(kFormA16, Isa::kAvx2, 1, 28), Figure(kFormA16, Isa::kAvx2, 16, 64),
       Figure(kFormA16, Isa::kAvx512Vnni, 1, 75), Figure(kFormA16, Isa::kAvx512Vnni, 16, 1.2)});
  EXPECT_EQ(order.Place(kFormA16, Isa::kAvx512Vnni), 0);
}

TEST(KernelOrder, EvenTheScalarSetMayComeFirst) {
  const KernelOrder order =
      OrderOf({Figure(kFormA8, Isa::kScalar, 1, 9), Figure(kFormA8, Isa::kAvx2, 1, 3),
               Figure(kFormA8, Isa::kAvx512Vnni, 1, 4)});
  EXPECT_EQ(order.Place(kFormA8, Isa::kScalar), 0);
  EXPECT_EQ(order.Place(kFormA8, Isa::kAvx512Vnni), 1);
  EXPECT_EQ(order.Place(kFormA8, Isa::kAvx2), 2);
}

PackedSpec IntSpec() {
  PackedSpec spec;
  spec.rows = 64;
  spec.cols = 128;
  spec.type = PackedSpec::Type::kInt;
  spec.bits = 4;
  spec.zero_point = 8;
  spec.group_size = 32;
  return spec;
}

TEST(KernelOrder, ABindFollowsItAndSaysWhy) {
  if (BestIsa() == Isa::kScalar) GTEST_SKIP() << "this machine has one set only";
  const KernelOrder order =
      OrderOf({Figure(kFormA16, Isa::kScalar, 1, 9), Figure(kFormA16, BestIsa(), 1, 4)});
  const auto widest = BoundLinear::Choose(IntSpec(), ActivationMode::kA16, 0, BestIsa());
  const auto measured = BoundLinear::Choose(IntSpec(), ActivationMode::kA16, 0, BestIsa(), &order);
  ASSERT_TRUE(widest.ok() && measured.ok()) << widest.status() << measured.status();
  EXPECT_EQ(widest->isa, BestIsa());
  EXPECT_TRUE(widest->refused.empty()) << RefusalText(widest->refused);
  EXPECT_FALSE(IsFallback(*widest));
  EXPECT_EQ(measured->isa, Isa::kScalar);
  EXPECT_FALSE(IsReference(measured->kernel)) << measured->kernel;
  EXPECT_TRUE(IsFallback(*measured));
  ASSERT_FALSE(measured->refused.empty());
  EXPECT_EQ(measured->refused[0].kernel, widest->kernel);
  EXPECT_NE(measured->refused[0].reason.find("slower here: 4.0 GMAC/s, scalar 9.0"),
            std::string::npos)
      << measured->refused[0].reason;
}

TEST(KernelOrder, AForcedSetIsNotPassedByAFasterWiderOne) {
  const auto choice = BoundLinear::Choose(IntSpec(), ActivationMode::kA16, 0, Isa::kScalar);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->isa, Isa::kScalar);
  if (BestIsa() == Isa::kScalar) return;
  ASSERT_FALSE(choice->refused.empty());
  EXPECT_NE(choice->refused[0].reason.find("held to scalar"), std::string::npos);
}

TEST(ProbeKernels, MeasuresEverySetOfThisMachineInEveryForm) {
  const KernelOrder order = ProbeKernels(BestIsa());
  std::set<std::pair<unsigned, Isa>> seen;
  for (const ProbeFigure& figure : order.figures()) {
    EXPECT_GT(figure.gmacs_per_s, 0) << figure.kernel;
    EXPECT_FALSE(IsReference(figure.kernel));
    seen.emplace(figure.form, figure.isa);
  }
  for (const unsigned form : {kFormF32, kFormA16, kFormA8}) {
    EXPECT_TRUE(seen.contains({form, BestIsa()})) << FormName(form);
  }
  const KernelOrder scalar = ProbeKernels(Isa::kScalar);
  EXPECT_FALSE(scalar.figures().empty());
  for (const ProbeFigure& figure : scalar.figures()) EXPECT_EQ(figure.isa, Isa::kScalar);
}

}  // namespace
}  // namespace bitshard
