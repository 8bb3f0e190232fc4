// The reserved range of device memory. Included by the emulator's own sources.
#pragma once

#include <cstddef>
#include <string>

namespace bitshard::emu {

struct DeviceArena {
  char* base;
  size_t bytes;
};
const DeviceArena& Arena();

// Address space that costs nothing until it is touched; zero at first.
void* ReserveAddresses(size_t bytes, const char* what);

// "4 bytes behind an allocation of 100 bytes" and the like, for messages. REQUIRES: LaunchLock() is
// held.
std::string DescribeDeviceAddress(const void* address);

}  // namespace bitshard::emu
