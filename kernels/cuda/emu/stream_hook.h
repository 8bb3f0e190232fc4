// Where the work of a stream goes in emulation.
//
// A launch is checked at once and then handed over as a closure that holds its arguments by value.
// Without a hook the closure runs before Enqueue returns, whatever the stream: all that a kernel
// test needs. The fake runtime sets a hook from a static initializer (the pointer is
// constant-initialized, so the order of initializers does not matter) and runs the closures when
// its lazy streams say so.
#pragma once

#include <driver_types.h>
#include <functional>

namespace bitshard::emu {

// Takes `work` for `stream` (nullptr: the default stream). An error is what the launch returns.
using EnqueueHook = cudaError_t (*)(cudaStream_t stream, std::function<void()> work);

// nullptr: run at once. Returns the hook that was set before.
EnqueueHook SetEnqueueHook(EnqueueHook hook);

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace bitshard::emu
