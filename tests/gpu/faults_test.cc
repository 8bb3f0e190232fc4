#include "tests/gpu/faults.h"

#include <memory>

#include "gtest/gtest.h"

#include "kernels/cuda/emu/findings.h"
#include "kernels/tensor/device.h"

namespace bitshard {
namespace {

uint64_t ErrorsOf(Fault fault) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  EXPECT_TRUE(device.ok()) << device.status();
  std::unique_ptr<DeviceStream> stream = *(*device)->NewStream();
  const DeviceBuffer data = *(*device)->Alloc(kFaultWords * sizeof(uint32_t));
  emu::ResetFindings();
  EXPECT_EQ(LaunchFault(fault, data.as<uint32_t>(), stream->native()), 0);
  EXPECT_TRUE((*device)->Sync(*stream).ok());
  const uint64_t errors = emu::Errors();
  emu::ResetFindings();
  return errors;
}

// What compute-sanitizer must report on a GPU, the emulator's check build reports here.
TEST(Faults, EachIsReportedAndTheCleanKernelIsNot) {
  EXPECT_EQ(ErrorsOf(Fault::kNone), 0u);
  EXPECT_GT(ErrorsOf(Fault::kOutOfBounds), 0u);
  EXPECT_GT(ErrorsOf(Fault::kRace), 0u);
  EXPECT_GT(ErrorsOf(Fault::kUninitialized), 0u);
}

}  // namespace
}  // namespace bitshard
