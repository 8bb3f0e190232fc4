// Tells ThreadSanitizer which reports about gRPC's headers are none: the library behind them is not
// instrumented, so what its completion queue orders (the callback of an operation, set before and
// freed after) looks like a race. Named are topmost functions, and functions that never call our
// code: races in what a callback of ours does are still reported.
#if defined(__SANITIZE_THREAD__)

extern "C" const char* __tsan_default_suppressions() {
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

#endif
