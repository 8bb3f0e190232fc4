// Where a model folder declares its quantization.
#include "coordinator/checkpoint/quantization.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using absl::StatusCode;

void ExpectError(const absl::Status& status, StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

TEST(Quantization, IsFoundInEachOfItsPlaces) {
  const auto find = [](const std::string& json) { return FindQuantization(json, "config.json"); };
  EXPECT_FALSE(find("{}")->has_value());
  EXPECT_FALSE(find(R"({"quantization_config":null})")->has_value());
  EXPECT_EQ((*find(R"({"quantization_config":{"quant_method":"GPTQ"}})"))->method, "gptq");
  const auto nested = find(R"({"text_config":{"quantization_config":{"quant_method":"awq"}}})");
  EXPECT_EQ((*nested)->method, "awq");
  EXPECT_EQ((*nested)->where, "config.json: text_config.quantization_config");
  EXPECT_EQ((*find(R"({"compression_config":{"quant_method":"compressed-tensors"}})"))->method,
            "compressed-tensors");
  const auto ordered =
      find(R"({"quantization_config":{"config_groups":{"b":1,"a":{"c":2},"group_10":[]}}})");
  EXPECT_EQ((*ordered)->groups, (std::vector<std::string>{"b", "a", "group_10"}));
  EXPECT_TRUE(find(R"({"quantization_config":{"quant_method":"a"},
                       "compression_config":{"quant_method":"a"}})")
                  .ok());
  ExpectError(find(R"({"quantization_config":{"quant_method":"a"},
                       "compression_config":{"quant_method":"b"}})")
                  .status(),
              StatusCode::kInvalidArgument, "compression_config says otherwise than");
  ExpectError(find(R"({"quantization_config":[]})").status(), StatusCode::kInvalidArgument,
              "is not an object");
}

TEST(Quantization, OtherMethodsAreRefusedByNameWithWhatIsSupported) {
  for (const char* method : {"gptq", "awq", "fp8", "unknown"}) {
    const QuantizationDeclaration declaration{.method = method,
                                              .settings = Json::object(),
                                              .where = "config.json: quantization_config",
                                              .groups = {}};
    const absl::Status status = ApplyQuantization(declaration, TensorIndex()).status();
    ExpectError(status, StatusCode::kUnimplemented,
                absl::StrCat("quant_method '", method, "' is not supported; supported are"));
    ExpectError(status, StatusCode::kUnimplemented, "compressed-tensors pack-quantized");
  }
}

}  // namespace
}  // namespace bitshard
