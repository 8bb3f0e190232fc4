#include "tests/support/fake_nccl_windows.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"

#include "tests/support/fake_nccl.h"

namespace bitshard::fake {
namespace {

// Of the process.
struct State {
  std::mutex mu;
  std::map<const char*, size_t> memory;                    // of ncclMemAlloc
  std::vector<std::shared_ptr<const NcclWindow>> windows;  // registered
};
State& TheState() {
  static auto* const state = new State;
  return *state;
}
std::atomic<int> misuses{0};

bool Holds(const char* begin, size_t bytes, const void* at) {
  return at >= begin && static_cast<const char*>(at) < begin + bytes;
}

const char* Environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// NCCL's handles are opaque.
ncclWindow_t HandleOf(const NcclWindow* window) {
  return reinterpret_cast<ncclWindow_t>(const_cast<NcclWindow*>(window));
}

}  // namespace

int LiveNcclWindows() {
  std::lock_guard<std::mutex> lock(TheState().mu);
  return static_cast<int>(TheState().windows.size());
}

int NcclMisuses() { return misuses.load(); }

void CountNcclMisuse(const std::string& what) {
  std::fprintf(stderr, "fake nccl: %s\n", what.c_str());
  ++misuses;
}

NcclWindows::~NcclWindows() {
  while (!windows_.empty()) Remove(HandleOf(windows_.back().get()));
}

ncclWindow_t NcclWindows::Add(const void* begin, size_t bytes, bool symmetric) {
  auto window = std::make_shared<NcclWindow>();
  window->number = made_++;
  window->begin = static_cast<const char*>(begin);
  window->bytes = bytes;
  window->symmetric = symmetric;
  windows_.push_back(window);
  std::lock_guard<std::mutex> lock(TheState().mu);
  TheState().windows.push_back(window);
  return HandleOf(window.get());
}

bool NcclWindows::Remove(ncclWindow_t handle) {
  const auto is = [handle](const auto& window) { return HandleOf(window.get()) == handle; };
  const auto found = std::find_if(windows_.begin(), windows_.end(), is);
  if (found == windows_.end()) return false;
  (*found)->registered.store(false);
  std::lock_guard<std::mutex> lock(TheState().mu);
  auto& all = TheState().windows;
  all.erase(std::remove_if(all.begin(), all.end(), is), all.end());
  windows_.erase(found);
  return true;
}

std::shared_ptr<const NcclWindow> NcclWindows::Find(const void* at) const {
  for (const auto& window : windows_) {
    if (Holds(window->begin, window->bytes, at)) return window;
  }
  return nullptr;
}

std::string WrongWith(const void* begin, size_t bytes, int flags) {
  if (begin == nullptr || bytes == 0) return "a window of nothing";
  if (flags != NCCL_WIN_COLL_SYMMETRIC) return absl::StrCat("window flags ", flags);
  std::lock_guard<std::mutex> lock(TheState().mu);
  for (const auto& [data, size] : TheState().memory) {
    if (Holds(data, size, begin) &&
        bytes <= static_cast<size_t>(data + size - static_cast<const char*>(begin)))
      return "";
  }
  return "a window in memory that is not of ncclMemAlloc";
}

void NoteNcclMemory(void* data, size_t bytes) {
  std::lock_guard<std::mutex> lock(TheState().mu);
  TheState().memory[static_cast<const char*>(data)] = bytes;
}

bool ForgetNcclMemory(void* data) {
  std::lock_guard<std::mutex> lock(TheState().mu);
  const auto found = TheState().memory.find(static_cast<const char*>(data));
  if (found == TheState().memory.end()) return false;
  for (const auto& window : TheState().windows) {
    if (Holds(found->first, found->second, window->begin)) return false;
  }
  TheState().memory.erase(found);
  return true;
}

std::string NcclWindowFault(int rank) {
  if (std::string(Environment("NCCL_WIN_ENABLE")) == "0") return "local";
  const std::string whom = Environment("BITSHARD_FAKE_NCCL_RANK");
  if (!whom.empty() && whom != absl::StrCat(rank)) return "";
  return Environment("BITSHARD_FAKE_NCCL_WINDOWS");
}

int NcclVersion() {
  const std::string version = Environment("BITSHARD_FAKE_NCCL_VERSION");
  // The first whose windows are used, whatever headers this is compiled with.
  return version.empty() ? std::max(NCCL_VERSION_CODE, 23007) : std::atoi(version.c_str());
}

}  // namespace bitshard::fake
