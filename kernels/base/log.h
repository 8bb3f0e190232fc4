// One line an event, key=value, to stderr. The only file that knows the logging library.
//
//   LogInfo("fleet: worker registered rank={} pid={}", rank, pid);
//
// No prompt text and no token ids at the default level; nothing per token.
#pragma once

#include <string>
#include <utility>

#include <spdlog/spdlog.h>

namespace bitshard {

template <typename... Args>
void LogDebug(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(spdlog::format_string_t<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

// Call once in main. `level`: "debug", "info", "warning" or "error"; false when it is none of
// these.
bool InitLogging(const std::string& program, const std::string& level);

}  // namespace bitshard
