// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status and absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                    \
  do {                                                 \
    absl::Status bitshard_status = (expression);       \
    if (!bitshard_status.ok()) return bitshard_status; \
  } while (false)

#define BITSHARD_CONCAT_INNER(a, b) a##b
#define BITSHARD_CONCAT(a, b) BITSHARD_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(lhs, expression) \
  BITSHARD_ASSIGN_OR_RETURN(BITSHARD_CONCAT(bitshard_or_, __LINE__), lhs, expression)
#define BITSHARD_ASSIGN_OR_RETURN(tmp, lhs, expression) \
  auto tmp = (expression);                              \
  if (!tmp.ok()) return std::move(tmp).status();        \
  lhs = *std::move(tmp)
