// The coordinator's flags: what is refused, and what the refusal says.

#include "coordinator/options.h"

#include <fstream>
#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/tensor/kv_type_by_name.h"
#include "proto/cache_type.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void Set(const std::string& flag, const std::string& value) {
  std::string error;
  absl::CommandLineFlag* found = absl::FindCommandLineFlag(flag);
  ASSERT_NE(found, nullptr) << flag;
  ASSERT_TRUE(found->ParseFrom(value, &error)) << error;
}

class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override { Set("model", "some.gguf"); }

  // The refusal of one flag's value.
  std::string Refusal(const std::string& flag, const std::string& value) {
    absl::FlagSaver saver;
    Set(flag, value);
    const auto options = CoordinatorOptionsFromFlags({});
    EXPECT_FALSE(options.ok()) << flag << "=" << value;
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(options.status().message());
  }

  absl::FlagSaver saver_;
};

TEST_F(OptionsTest, DefaultsAreFine) {
  const auto options = CoordinatorOptionsFromFlags({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->port, 50051);
  EXPECT_FALSE(options->kv_bytes.has_value());
  EXPECT_EQ(options->token_budget, 0u);
  EXPECT_EQ(options->activations, internal::NumericsOptions::ACTIVATIONS_A16);
  EXPECT_TRUE(options->reflection);
  EXPECT_FALSE(options->open);
}

TEST_F(OptionsTest, MoreThanTheDevicesBudgetMayRunUnlessOneIsGiven) {
  Set("max_running", "300");
  EXPECT_TRUE(CoordinatorOptionsFromFlags({}).ok());
  EXPECT_THAT(Refusal("token_budget", "299"),
              HasSubstr("--max-running=300: more than --token-budget=299"));
}

TEST_F(OptionsTest, NumericsAreDeterministicUnlessTurnedOff) {
  EXPECT_TRUE(CoordinatorOptionsFromFlags({})->deterministic);
  Set("deterministic", "false");
  EXPECT_FALSE(CoordinatorOptionsFromFlags({})->deterministic);
}

TEST_F(OptionsTest, PrefixCacheIsOnUnlessTurnedOff) {
  EXPECT_TRUE(CoordinatorOptionsFromFlags({})->prefix_cache);
  Set("prefix_cache", "off");
  EXPECT_FALSE(CoordinatorOptionsFromFlags({})->prefix_cache);
  EXPECT_THAT(Refusal("prefix_cache", "yes"), HasSubstr("--prefix-cache=yes: use on or off"));
}

TEST_F(OptionsTest, CacheTypesAreThoseOfTheKernelsByTheirNames) {
  for (const KvType type : kAllKvTypes) {
    Set("kv_cache_dtype", KvTypeName(type));
    const auto options = CoordinatorOptionsFromFlags({});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(KvTypeByName(CacheTypeName(options->kv_cache_type)), type);
  }
  for (const char* name : {"unspecified", "BF16", ""})
    EXPECT_THAT(Refusal("kv_cache_dtype", name), HasSubstr("bf16, f16")) << name;
}

TEST_F(OptionsTest, ServiceIsSharedByWeightAndBoundedWhenAskedFor) {
  EXPECT_EQ(CoordinatorOptionsFromFlags({})->max_queue_wait, absl::InfiniteDuration());
  Set("itl_slo", "50ms");
  Set("max_queue_wait", "5s");
  const auto options = CoordinatorOptionsFromFlags({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->itl_slo, absl::Milliseconds(50));
  EXPECT_EQ(options->max_queue_wait, absl::Seconds(5));
}

TEST_F(OptionsTest, WeightsOfTenantsAreReadButNotTakenWithoutTls) {
  const auto weights = ParseTenantWeights("alice=2,spiffe://team/x=y=0.5");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->at("alice"), 2);
  EXPECT_EQ(weights->at("spiffe://team/x=y"), 0.5);
  EXPECT_THAT(Refusal("tenant_weights", "alice=2"),
              HasSubstr("--tenant-weights=alice=2: only TLS"));
}

TEST_F(OptionsTest, EachBadValueNamesItsFlag) {
  EXPECT_THAT(Refusal("model", ""), HasSubstr("--model"));
  EXPECT_THAT(Refusal("workers", "0"), HasSubstr("--workers=0"));
  EXPECT_THAT(Refusal("shares", "1,x"), HasSubstr("--shares=1,x"));
  EXPECT_THAT(Refusal("shares", "1,2"), HasSubstr("--workers is 1"));
  EXPECT_THAT(Refusal("port", "70000"), HasSubstr("--port=70000"));
  EXPECT_THAT(Refusal("fleet_port", "50051"), HasSubstr("the same"));
  EXPECT_THAT(Refusal("metrics_port", "50051"), HasSubstr("--metrics-port"));
  EXPECT_THAT(Refusal("activations", "a4"), HasSubstr("a16, a8 or f32"));
  EXPECT_THAT(Refusal("kv_cache_dtype", "int3"), HasSubstr("bf16, f16, f32, int8 or fp8_e4m3"));
  EXPECT_THAT(Refusal("kv_cache_bytes", "lots"), HasSubstr("512MiB or 24GiB, or auto"));
  EXPECT_THAT(Refusal("token_budget", "-1"), HasSubstr("--token-budget"));
  EXPECT_THAT(Refusal("token_budget", "65536"),
              HasSubstr("--token-budget=65536: must be 0 to 65535"));
  EXPECT_THAT(Refusal("max_running", "-1"), HasSubstr("--max-running"));
  EXPECT_THAT(Refusal("max_running", "4097"), HasSubstr("--max-running=4097: must be 1 to 4096"));
  EXPECT_THAT(Refusal("token_budget", "63"), HasSubstr("--max-running=64"));
  EXPECT_THAT(Refusal("max_waiting", "0"), HasSubstr("--max-waiting=0: must be 1 to"));
  EXPECT_THAT(Refusal("stall_timeout", "1ms"), HasSubstr("--stall-timeout"));
  EXPECT_THAT(Refusal("itl_slo", "-1ms"), HasSubstr("--itl-slo"));
  EXPECT_THAT(Refusal("max_queue_wait", "48h"), HasSubstr("--max-queue-wait"));
  for (const char* weights : {"alice", "=2", "alice=0", "alice=-1", "alice=nan", "alice=x"})
    EXPECT_THAT(Refusal("tenant_weights", weights), HasSubstr("NAME=WEIGHT")) << weights;
  EXPECT_THAT(Refusal("tenant_weights", "alice=1,alice=2"), HasSubstr("twice"));
  EXPECT_THAT(Refusal("tls_cert_file", "x"), HasSubstr("not built"));
  EXPECT_THAT(Refusal("token_file", "/nowhere/at/all"), HasSubstr("--token-file"));
  EXPECT_THAT(Refusal("bind", "0.0.0.0"), HasSubstr("--token-file"));
  EXPECT_THAT(Refusal("reflection", "maybe"), HasSubstr("on, off or auto"));
  EXPECT_THAT(std::string(CoordinatorOptionsFromFlags({"model.gguf"}).status().message()),
              HasSubstr("model.gguf"));
}

TEST_F(OptionsTest, AnOpenAddressWithATokenIsFineAndWithoutReflection) {
  const std::string path = ::testing::TempDir() + "/token";
  std::ofstream(path) << " secret\n";
  Set("bind", "0.0.0.0");
  Set("token_file", path);
  const auto options = CoordinatorOptionsFromFlags({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->token, "secret");
  EXPECT_EQ(options->fleet_bind, "0.0.0.0");
  EXPECT_FALSE(options->reflection);
  EXPECT_TRUE(options->open);
}

TEST_F(OptionsTest, WorkersDialWhereRequestsComeUnlessSaidOtherwise) {
  EXPECT_EQ(CoordinatorOptionsFromFlags({})->fleet_bind, "127.0.0.1");
  EXPECT_THAT(Refusal("fleet_bind", "0.0.0.0"), HasSubstr("--fleet-bind=0.0.0.0"));
  Set("bind", "192.168.0.5");
  Set("fleet_bind", "127.0.0.1");
  const auto options = CoordinatorOptionsFromFlags({});
  ASSERT_TRUE(options.ok()) << "no token is needed: " << options.status();
  EXPECT_EQ(options->bind, "192.168.0.5");
  EXPECT_EQ(options->fleet_bind, "127.0.0.1");
  EXPECT_FALSE(options->reflection);
}

TEST_F(OptionsTest, PortsMayAllBePicked) {
  for (const char* flag : {"port", "fleet_port", "health_port", "admin_port", "metrics_port"})
    Set(flag, "0");
  EXPECT_TRUE(CoordinatorOptionsFromFlags({}).ok());
}

TEST_F(OptionsTest, SharesAndNamesAreLists) {
  Set("workers", "3");
  Set("shares", "3,2,0.5");
  Set("served_model_name", "a,b");
  const auto options = CoordinatorOptionsFromFlags({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(options->shares, ElementsAre(3, 2, 0.5));
  EXPECT_THAT(options->served_names, ElementsAre("a", "b"));
}

TEST(ParseBytes, KnowsUnits) {
  EXPECT_EQ(*ParseBytes("1024"), 1024u);
  EXPECT_EQ(*ParseBytes("1.5GiB"), uint64_t{3} << 29);
  EXPECT_EQ(*ParseBytes("2G"), uint64_t{2} << 30);
  for (const char* bad : {"", "-1", "0", "nan", "1e30", "5 apples", "GiB"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
}

}  // namespace
}  // namespace bitshard
