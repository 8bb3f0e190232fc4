// The device's memory: one reserved range of addresses, never reused, with gaps between
// allocations.
//
// Any thread may call; calls wait for a launch that is running. New memory holds 0xffab in every 16
// bits (NaN as f32, f16 and bf16, out of range as an index) up to 64 MiB of an allocation. Check
// builds know of every byte whether it is allocated and has been written, and turn what is wrong
// with a copy into a finding (findings.h).
#pragma once

#include <cstddef>

namespace bitshard::emu {

// Aligned to 256 bytes. nullptr: the range of addresses is used up (16 GiB in the life of a
// process, 4 GiB in check builds). Limits below that are the caller's.
void* Allocate(size_t bytes);
// False, and nothing happens: `address` is not the start of a live allocation.
bool Free(void* address);
// Whether [address, address + bytes) lies in one live allocation.
bool IsAllocated(const void* address, size_t bytes);
// Whether the address belongs to the device at all, allocated or not.
bool IsDeviceAddress(const void* address);

// Ranges on the device that are not allocated are a finding, and nothing is copied.
void CopyToDevice(void* device, const void* host, size_t bytes);
void CopyFromDevice(void* host, const void* device, size_t bytes);
void CopyOnDevice(void* to, const void* from, size_t bytes);
void FillOnDevice(void* device, unsigned char value, size_t bytes);

// From now on device memory can be touched only by kernels and by the functions above: host code
// that follows a device pointer dies of SIGSEGV. Costs two system calls a launch and copy; off at
// first.
void ProtectDeviceMemory(bool protect);

}  // namespace bitshard::emu
