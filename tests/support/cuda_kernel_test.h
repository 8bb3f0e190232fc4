// For tests of CUDA kernels on the emulator: arrays in device memory, and what the emulator found.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/cuda/emu/findings.h"
#include "kernels/cuda/emu/memory.h"
#include "kernels/cuda/emu/options.h"

namespace bitshard::emu {

// An array in device memory. Freed at the end of its life.
template <class T>
class DeviceArray {
 public:
  // Never written: what a kernel reads of it is NaN, and a finding in check builds.
  explicit DeviceArray(size_t size)
      : data_(static_cast<T*>(Allocate(size * sizeof(T)))), size_(size) {
    CHECK(data_ != nullptr) << "the emulator has no addresses left for " << size << " elements";
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Write(values); }
  ~DeviceArray() {
    if (data_ != nullptr) Free(data_);
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() { return data_; }
  const T* get() const { return data_; }
  size_t size() const { return size_; }

  // REQUIRES: fits. The rest stays as it is.
  void Write(const std::vector<T>& values, size_t first = 0) {
    CHECK_LE(first + values.size(), size_);
    CopyToDevice(data_ + first, values.data(), values.size() * sizeof(T));
  }
  std::vector<T> Read() const { return Read(0, size_); }
  std::vector<T> Read(size_t first, size_t count) const {
    CHECK_LE(first + count, size_);
    std::vector<T> values(count);
    CopyFromDevice(values.data(), data_ + first, count * sizeof(T));
    return values;
  }

 private:
  T* data_;
  size_t size_;
};

// Since the last ResetFindings. Forgets what it has shown.
inline void ExpectNoFindings(const std::string& context = "") {
  EXPECT_EQ(Errors(), 0u) << context << "\n" << FindingsText();
  ResetFindings();
}

// Calls `run` under each order of threads, and with copies that land as late and as early as they
// may. Check builds see all accesses in any order: there it is called once.
inline void UnderEachSchedule(const std::function<void(const std::string& schedule)>& run) {
  const std::pair<const char*, Options> schedules[] = {
      {"forward", {.order = Order::kForward}},
      {"backward", {.order = Order::kBackward}},
      {"shuffled", {.order = Order::kShuffled, .seed = 3}},
      {"shuffled, copies early", {.order = Order::kShuffled, .seed = 4, .copies_land_early = true}},
  };
  for (const auto& [name, options] : schedules) {
    SetOptions(options);
    run(name);
    SetOptions({});
    if (ChecksAccesses()) break;
  }
}

}  // namespace bitshard::emu
