// What ranks that meet over NCCL tell each other first.
#pragma once

#include <string>

#include <nccl.h>

#include "kernels/tensor/device.h"

namespace bitshard {

struct NcclCard {
  int version = 0;        // of the library that runs
  ncclUniqueId id = {};   // rank 0's
  std::string device_id;  // NameOfGpu

  std::string Pack() const;
  // False when it is none.
  bool Unpack(const std::string& text);
};

// As nvidia-smi writes it, "GPU-8f0c..."; "" when it has no such name.
std::string NameOfGpu(const Device& device);

}  // namespace bitshard
