#include "tests/support/fake_cuda_streams.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace bitshard::fake {
namespace {

thread_local bool on_stream_thread = false;

bool Captures(const CUstream_st& stream) { return stream.capture != nullptr; }

}  // namespace

bool OnStreamThread() { return on_stream_thread; }

void Streams::Reset(bool lazy) {
  Lock lock(mu_);
  CHECK(events_.empty()) << events_.size() << " events were not destroyed";
  CHECK(graphs_.empty()) << graphs_.size() << " graphs were not destroyed";
  CHECK(executables_.empty()) << executables_.size() << " executable graphs were not destroyed";
  for (const StreamPtr& stream : streams_) {
    CHECK(stream->is_default || stream->closing) << "a stream was not destroyed";
    stream->closing = true;
    Force(stream, stream->enqueued);
  }
  changed_.notify_all();
  changed_.wait(lock, [this] { return threads_ == 0; });
  streams_.clear();
  breakages_.clear();
  held_.clear();
  lazy_ = lazy;
}

int Streams::Live() {
  Lock lock(mu_);
  const auto live = std::count_if(streams_.begin(), streams_.end(), [](const StreamPtr& stream) {
    return !stream->is_default && !stream->closing;
  });
  return static_cast<int>(live + events_.size() + graphs_.size() + executables_.size());
}

uint64_t Streams::Made() {
  Lock lock(mu_);
  return made_;
}

// ---- Broken devices.

cudaError_t Streams::BrokenLocked(int device) const {
  const auto entry = breakages_.find(device);
  return entry == breakages_.end() || !entry->second.done ? cudaSuccess : entry->second.error;
}

cudaError_t Streams::Broken(int device) {
  Lock lock(mu_);
  return BrokenLocked(device);
}

void Streams::Break(int device, cudaError_t error, int works) {
  Lock lock(mu_);
  breakages_[device] = {error, works, false};
}

// Whether the next piece of work finds the device broken; counts it.
bool Streams::TakesBreakage(int device) {
  const auto entry = breakages_.find(device);
  if (entry == breakages_.end()) return false;
  Breakage& breakage = entry->second;
  if (!breakage.done && breakage.works-- == 0) breakage.done = true;
  return breakage.done;
}

void Streams::Hold(int device) {
  Lock lock(mu_);
  held_.emplace(device, 0);
}

void Streams::AwaitHeld(int device) {
  Lock lock(mu_);
  changed_.wait(lock, [&] { return held_.at(device) > 0; });
}

void Streams::Resume(int device) {
  Lock lock(mu_);
  held_.erase(device);
  changed_.notify_all();
}

void Streams::BeginWork(Lock& lock, int device) {
  const auto held = held_.find(device);
  if (held == held_.end()) return;
  ++held->second;
  changed_.notify_all();
  changed_.wait(lock, [&] { return held_.count(device) == 0; });
}

// ---- Streams.

Streams::StreamPtr Streams::Find(cudaStream_t handle, int device) {
  for (const StreamPtr& stream : streams_) {
    if (handle != nullptr ? stream.get() == handle && !stream->closing
                          : stream->is_default && stream->device == device) {
      return stream;
    }
  }
  if (handle != nullptr) return nullptr;
  auto stream = std::make_shared<CUstream_st>();
  stream->device = device;
  stream->is_default = true;
  streams_.push_back(stream);
  return stream;
}

cudaError_t Streams::Create(int device, cudaStream_t* stream) {
  Lock lock(mu_);
  streams_.push_back(std::make_shared<CUstream_st>());
  ++made_;
  streams_.back()->device = device;
  *stream = streams_.back().get();
  return cudaSuccess;
}

cudaError_t Streams::Destroy(cudaStream_t handle) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, 0);
  if (stream == nullptr || stream->is_default) return cudaErrorInvalidResourceHandle;
  stream->closing = true;
  stream->capture = nullptr;
  Force(stream, stream->enqueued);
  if (!stream->has_thread) streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
  changed_.notify_all();
  return cudaSuccess;
}

cudaError_t Streams::Push(CUstream_st& stream, Work work) {
  if (Captures(stream)) {
    if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
    stream.capture->work.push_back(std::move(work));
    return cudaSuccess;
  }
  stream.queue.push_back(std::move(work));
  ++stream.enqueued;
  return cudaSuccess;
}

cudaError_t Streams::Enqueue(cudaStream_t handle, int device, bool other_devices, WorkFn run) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr || (stream->device != device && !other_devices)) {
    return cudaErrorInvalidResourceHandle;
  }
  if (const cudaError_t broken = BrokenLocked(stream->device)) return broken;
  const cudaError_t error = Push(*stream, {.run = std::move(run), .stream = nullptr});
  if (!lazy_) Force(stream, stream->enqueued);
  return error;
}

// Lets the stream's thread go on until `count` pieces have passed.
void Streams::Force(const StreamPtr& stream, uint64_t count) {
  CHECK_LE(count, stream->enqueued);
  if (count <= stream->allowed) return;
  stream->allowed = count;
  if (!stream->has_thread) {
    stream->has_thread = true;
    ++threads_;
    std::thread([this, stream] { RunStream(stream); }).detach();
  }
  changed_.notify_all();
}

void Streams::RunStream(StreamPtr stream) {
  on_stream_thread = true;
  Lock lock(mu_);
  while (true) {
    changed_.wait(lock, [&] {
      return stream->passed < stream->allowed || (stream->closing && stream->queue.empty());
    });
    if (stream->queue.empty()) break;
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (work.stream != nullptr) {
      Force(work.stream, work.count);
      changed_.wait(lock, [&] { return work.stream->passed >= work.count; });
      work.stream = nullptr;
    } else {
      const bool broken = TakesBreakage(stream->device);
      BeginWork(lock, stream->device);
      lock.unlock();
      const cudaError_t error = broken ? cudaSuccess : work.run();
      work.run = nullptr;  // what it holds is given up without the lock
      lock.lock();
      if (error != cudaSuccess) breakages_[stream->device] = {error, 0, true};
    }
    ++stream->passed;
    changed_.notify_all();
  }
  streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
  --threads_;
  changed_.notify_all();
}

// Until `count` pieces have passed, or the device is lost.
cudaError_t Streams::WaitFor(Lock& lock, const StreamPtr& stream, uint64_t count) {
  if (on_stream_thread) return cudaErrorNotPermitted;
  if (const cudaError_t broken = BrokenLocked(stream->device)) return broken;
  Force(stream, count);
  changed_.wait(
      lock, [&] { return stream->passed >= count || BrokenLocked(stream->device) != cudaSuccess; });
  return BrokenLocked(stream->device);
}

cudaError_t Streams::Synchronize(cudaStream_t handle, int device) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (Captures(*stream)) {
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (ForbiddenByCaptureLocked()) return cudaErrorStreamCaptureUnsupported;
  return WaitFor(lock, stream, stream->enqueued);
}

cudaError_t Streams::Query(cudaStream_t handle, int device) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (Captures(*stream)) {
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (ForbiddenByCaptureLocked()) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t broken = BrokenLocked(stream->device)) return broken;
  if (stream->passed >= stream->enqueued) return cudaSuccess;
  Force(stream, stream->enqueued);
  return cudaErrorNotReady;
}

cudaError_t Streams::SynchronizeDevice(int device, bool captures_are_errors) {
  Lock lock(mu_);
  const std::vector<StreamPtr> streams = streams_;
  if (captures_are_errors) {
    bool any = false;
    for (const StreamPtr& stream : streams) {
      if (stream->device != device || !Captures(*stream)) continue;
      stream->capture->invalid = true;
      any = true;
    }
    if (any) return cudaErrorStreamCaptureUnsupported;
  }
  for (const StreamPtr& stream : streams) {
    if (stream->device != device) continue;
    if (const cudaError_t error = WaitFor(lock, stream, stream->enqueued)) return error;
  }
  return BrokenLocked(device);
}

// ---- Events.

cudaError_t Streams::CreateEvent(int device, bool timed, cudaEvent_t* event) {
  Lock lock(mu_);
  *event = new CUevent_st{.device = device, .stream = nullptr};
  if (timed) (*event)->time = std::make_shared<std::chrono::steady_clock::time_point>();
  events_.insert(*event);
  ++made_;
  return cudaSuccess;
}

cudaError_t Streams::DestroyEvent(cudaEvent_t event) {
  Lock lock(mu_);
  if (events_.erase(event) == 0) return cudaErrorInvalidResourceHandle;
  delete event;
  return cudaSuccess;
}

cudaError_t Streams::Record(cudaEvent_t event, cudaStream_t handle, int device) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr || events_.count(event) == 0 || event->device != stream->device) {
    return cudaErrorInvalidResourceHandle;
  }
  if (Captures(*stream)) {
    stream->capture->invalid = true;
    return cudaErrorNotSupported;
  }
  if (event->time != nullptr) {
    const cudaError_t error = Push(*stream, {.run =
                                                 [time = event->time] {
                                                   *time = std::chrono::steady_clock::now();
                                                   return cudaSuccess;
                                                 },
                                             .stream = nullptr});
    if (error != cudaSuccess) return error;
    if (!lazy_) Force(stream, stream->enqueued);
  }
  event->stream = stream;
  event->count = stream->enqueued;
  return cudaSuccess;
}

cudaError_t Streams::Wait(cudaStream_t handle, int device, cudaEvent_t event) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr || events_.count(event) == 0) return cudaErrorInvalidResourceHandle;
  if (Captures(*stream)) {
    stream->capture->invalid = true;
    return cudaErrorNotSupported;
  }
  if (event->stream == nullptr || event->stream == stream) return cudaSuccess;
  const cudaError_t error =
      Push(*stream, {.run = nullptr, .stream = event->stream, .count = event->count});
  if (!lazy_) Force(stream, stream->enqueued);
  return error;
}

cudaError_t Streams::QueryEvent(cudaEvent_t event) {
  Lock lock(mu_);
  if (events_.count(event) == 0) return cudaErrorInvalidResourceHandle;
  if (ForbiddenByCaptureLocked()) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t broken = BrokenLocked(event->device)) return broken;
  if (event->stream == nullptr || event->stream->passed >= event->count) return cudaSuccess;
  Force(event->stream, event->count);
  return cudaErrorNotReady;
}

cudaError_t Streams::SynchronizeEvent(cudaEvent_t event) {
  Lock lock(mu_);
  if (events_.count(event) == 0) return cudaErrorInvalidResourceHandle;
  if (ForbiddenByCaptureLocked()) return cudaErrorStreamCaptureUnsupported;
  if (event->stream == nullptr) return BrokenLocked(event->device);
  const StreamPtr stream = event->stream;  // the event may be recorded again meanwhile
  return WaitFor(lock, stream, event->count);
}

cudaError_t Streams::Elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  Lock lock(mu_);
  for (const cudaEvent_t event : {from, to}) {
    if (events_.count(event) == 0 || event->time == nullptr || event->stream == nullptr)
      return cudaErrorInvalidResourceHandle;
    if (ForbiddenByCaptureLocked()) return cudaErrorStreamCaptureUnsupported;
    if (const cudaError_t broken = BrokenLocked(event->device)) return broken;
    if (event->stream->passed < event->count) return cudaErrorNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*to->time - *from->time).count();
  return cudaSuccess;
}

// ---- Captures and graphs.

bool Streams::ForbiddenByCaptureLocked() {
  bool forbidden = false;
  for (const StreamPtr& stream : streams_) {
    if (!Captures(*stream)) continue;
    Capture& capture = *stream->capture;
    const bool here = capture.thread == std::this_thread::get_id() &&
                      capture.mode != cudaStreamCaptureModeRelaxed;
    if (!here && capture.mode != cudaStreamCaptureModeGlobal) continue;
    capture.invalid = true;
    forbidden = true;
  }
  return forbidden;
}

bool Streams::ForbiddenByCapture() {
  Lock lock(mu_);
  return ForbiddenByCaptureLocked();
}

bool Streams::IsCapturing(cudaStream_t handle, int device) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  return stream != nullptr && Captures(*stream);
}

void Streams::InvalidateCapture(cudaStream_t handle, int device) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream != nullptr && Captures(*stream)) stream->capture->invalid = true;
}

cudaError_t Streams::CaptureStatus(cudaStream_t handle, int device,
                                   cudaStreamCaptureStatus* status) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  *status = !Captures(*stream)         ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t Streams::BeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Lock lock(mu_);
  if (handle == nullptr) return cudaErrorStreamCaptureUnsupported;
  const StreamPtr stream = Find(handle, 0);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (Captures(*stream)) {
    stream->capture->invalid = true;
    return cudaErrorIllegalState;
  }
  stream->capture = std::make_unique<Capture>();
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->mode = mode;
  return cudaSuccess;
}

cudaError_t Streams::EndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Lock lock(mu_);
  *graph = nullptr;
  const StreamPtr stream = Find(handle, 0);
  if (handle == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (!Captures(*stream)) return cudaErrorIllegalState;
  if (stream->capture->mode != cudaStreamCaptureModeRelaxed &&
      stream->capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st{std::move(capture->work)};
  graphs_.insert(*graph);
  ++made_;
  return cudaSuccess;
}

cudaError_t Streams::Instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
  Lock lock(mu_);
  if (graphs_.count(graph) == 0) return cudaErrorInvalidValue;
  *executable = new CUgraphExec_st{graph->work};
  executables_.insert(*executable);
  ++made_;
  return cudaSuccess;
}

void Streams::MakeUploaded(CUgraphExec_st& executable) {
  if (!executable.uploaded) ++made_;
  executable.uploaded = true;
}

cudaError_t Streams::Upload(cudaGraphExec_t executable, cudaStream_t handle, int device) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (executables_.count(executable) == 0) return cudaErrorInvalidValue;
  if (Captures(*stream)) {
    stream->capture->invalid = true;
    return cudaErrorNotSupported;
  }
  if (const cudaError_t broken = BrokenLocked(stream->device)) return broken;
  MakeUploaded(*executable);
  return cudaSuccess;
}

cudaError_t Streams::Launch(cudaGraphExec_t executable, cudaStream_t handle, int device) {
  Lock lock(mu_);
  const StreamPtr stream = Find(handle, device);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (executables_.count(executable) == 0) return cudaErrorInvalidValue;
  if (Captures(*stream)) {
    stream->capture->invalid = true;
    return cudaErrorNotSupported;
  }
  if (const cudaError_t broken = BrokenLocked(stream->device)) return broken;
  MakeUploaded(*executable);
  for (const Work& work : executable->work) {
    if (const cudaError_t error = Push(*stream, work)) return error;
  }
  if (!lazy_) Force(stream, stream->enqueued);
  return cudaSuccess;
}

cudaError_t Streams::DestroyGraph(cudaGraph_t graph) {
  std::unique_ptr<CUgraph_st> gone;  // without the lock: work may hold anything
  Lock lock(mu_);
  if (graphs_.erase(graph) == 0) return cudaErrorInvalidValue;
  gone.reset(graph);
  return cudaSuccess;
}

cudaError_t Streams::DestroyExecutable(cudaGraphExec_t executable) {
  std::unique_ptr<CUgraphExec_st> gone;
  Lock lock(mu_);
  if (executables_.erase(executable) == 0) return cudaErrorInvalidValue;
  gone.reset(executable);
  return cudaSuccess;
}

}  // namespace bitshard::fake
