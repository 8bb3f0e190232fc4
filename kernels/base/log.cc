#include "kernels/base/log.h"

#include <memory>

#include <spdlog/sinks/stdout_sinks.h>

namespace bitshard {

bool InitLogging(const std::string& program, const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off) return false;  // from_str's answer to unknown names
  auto logger =
      std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %n[%P] %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  return true;
}

}  // namespace bitshard
