// Opens the device's memory while ProtectDeviceMemory is on. Included by the emulator's own
// sources.
#pragma once

namespace bitshard::emu {

// REQUIRES: LaunchLock() is held for the whole life.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace bitshard::emu
