// CHECK: our own invariants, alive in release builds too. Anything that comes from outside (files,
// peers, flags, requests) gets an absl::Status instead; a CHECK that an input can trip is a bug.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>

namespace bitshard {
namespace check_internal {

// Prints "file:line: CHECK failed: <condition> <message>" to stderr and aborts.
[[noreturn]] void Die(const char* file, int line, const std::string& text);

class Failure {
 public:
  Failure(const char* file, int line, const char* condition) : file_(file), line_(line) {
    text_ << condition << " ";
  }
  [[noreturn]] ~Failure() { Die(file_, line_, text_.str()); }
  std::ostream& stream() { return text_; }

 private:
  const char* file_;
  int line_;
  std::ostringstream text_;
};

// Turns the stream expression into void, so that CHECK can stand in a conditional expression.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace check_internal
}  // namespace bitshard

#define CHECK(condition)                                \
  (condition) ? (void)0                                 \
              : ::bitshard::check_internal::Voidify() & \
                    ::bitshard::check_internal::Failure(__FILE__, __LINE__, #condition).stream()
#define BITSHARD_CHECK_OP(op, a, b) CHECK((a)op(b)) << "(" << (a) << " vs " << (b) << ") "
#define CHECK_EQ(a, b) BITSHARD_CHECK_OP(==, a, b)
#define CHECK_NE(a, b) BITSHARD_CHECK_OP(!=, a, b)
#define CHECK_LE(a, b) BITSHARD_CHECK_OP(<=, a, b)
#define CHECK_LT(a, b) BITSHARD_CHECK_OP(<, a, b)
#define CHECK_GE(a, b) BITSHARD_CHECK_OP(>=, a, b)
#define CHECK_GT(a, b) BITSHARD_CHECK_OP(>, a, b)
#define CHECK_OK(expression)                                       \
  do {                                                             \
    const auto& bitshard_check_ok = (expression);                  \
    CHECK(bitshard_check_ok.ok()) << bitshard_check_ok.ToString(); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition) \
  while (false) CHECK(condition)
#else
#define DCHECK(condition) CHECK(condition)
#endif
