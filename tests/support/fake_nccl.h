// What tests may ask of the fake NCCL (fake_nccl.cc) beside nccl.h. Of this process.
#pragma once

namespace bitshard::fake {

// Windows that are registered.
int LiveNcclWindows();

// Uses that real NCCL would have answered with a fault, a hang or wrong sums, each told on stderr:
// an operation in a window that was deregistered, or in memory that was freed; a window that is
// deregistered while graphs hold operations of its communicator, or left to ncclCommDestroy; memory
// that is freed under a window; two threads in calls on one communicator, but for those that end
// it.
int NcclMisuses();

}  // namespace bitshard::fake
