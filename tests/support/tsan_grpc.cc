// Tells ThreadSanitizer which reports about gRPC's headers are none: the library behind them is not
// instrumented, so what its completion queue orders (the callback of an operation, set before and
// freed after) looks like a race. Named are topmost functions, and functions that never call our
// code: races in what a callback of ours does are still reported.
#if defined(__SANITIZE_THREAD__)

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

#include <grpc/grpc.h>

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);

const char* __tsan_default_suppressions() {
  return "race_top:grpc::\n"
         "race:grpc::internal::CallOpSet\n"
         "race:grpc::internal::InterceptorBatchMethodsImpl\n"
         "race:grpc::internal::ServerCallbackCall::Unref\n"
         "race:grpc::internal::ServerCallbackCall::ServerCallbackCall\n"
         // A reactor is made on one thread and called on another, ordered by the queue alone.
         "race:std::_Sp_counted_ptr_inplace\n"
         "race:WatchCall::WatchCall\n"
         "race_top:std::function<void (bool)>\n"
         "race_top:std::_Function_base\n";
}

// What gRPC orders, and cannot be seen: what is made before a server starts is there for its calls,
// whichever thread takes them from a queue; what goes before an operation is begun is there for
// whoever hears that it is over; and what calls did is done when their server is destroyed, which
// has waited for them.
void grpc_server_start(grpc_server* server);
grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved);
grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved);
void grpc_call_unref(grpc_call* call);
void grpc_server_destroy(grpc_server* server);
}

namespace {

char started, ended;

template <typename Function>
Function* Next(const char* symbol) {
  void* const next = dlsym(RTLD_NEXT, symbol);
  if (next == nullptr) {
    std::fprintf(stderr, "tsan_grpc: this gRPC has no %s\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(next);
}

}  // namespace

void grpc_server_start(grpc_server* server) {
  static auto* const next = Next<decltype(grpc_server_start)>("grpc_server_start");
  __tsan_release(&started);
  next(server);
}

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  static auto* const next = Next<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  __tsan_release(tag);
  return next(call, ops, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  static auto* const next =
      Next<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  const grpc_event event = next(queue, deadline, reserved);
  __tsan_acquire(&started);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

// After the OnDone of its reactor.
void grpc_call_unref(grpc_call* call) {
  static auto* const next = Next<decltype(grpc_call_unref)>("grpc_call_unref");
  __tsan_release(&ended);
  next(call);
}

void grpc_server_destroy(grpc_server* server) {
  static auto* const next = Next<decltype(grpc_server_destroy)>("grpc_server_destroy");
  __tsan_acquire(&ended);
  next(server);
}

#endif
