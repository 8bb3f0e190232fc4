// faults none|oob|race|uninit: runs a kernel with that fault, for a checker that must report it
// (check.sh).
#include <cstdio>
#include <memory>
#include <string>

#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"
#include "tests/gpu/faults.h"
#include "tests/gpu/findings_exit.h"

namespace bitshard {
namespace {

absl::Status Run(Fault fault) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice("cuda", 0));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device->NewStream());
  ASSIGN_OR_RETURN(DeviceBuffer data, device->Alloc(kFaultWords * sizeof(uint32_t)));
  const int error = LaunchFault(fault, data.as<uint32_t>(), stream->native());
  if (error != 0) return absl::InternalError("the launch failed");
  return device->Sync(*stream);
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  const std::string name = argc == 2 ? argv[1] : "";
  const std::string names[] = {"none", "oob", "race", "uninit"};
  for (int i = 0; i < 4; ++i) {
    if (name != names[i]) continue;
    const absl::Status status = bitshard::Run(static_cast<bitshard::Fault>(i));
    if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
    // A fault may break the device, and compute-sanitizer speaks only where the program does not.
    return bitshard::ExitStatus(status.ok() || i > 0 ? 0 : 1);
  }
  std::fprintf(stderr, "usage: %s none|oob|race|uninit\n", argv[0]);
  return 2;
}
