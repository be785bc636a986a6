// Status of an internal engine call: a code of the C ABI and a text that names what was wrong (file, tensor, field).
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>

#include "tandem/engine.h"

namespace tnd {

class [[nodiscard]] Status {
 public:
  Status() = default;  // TND_OK
  Status(tnd_status code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == TND_OK; }
  tnd_status code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  tnd_status code_ = TND_OK;
  std::string message_;
};

// errorf formats the message of a failed Status.
__attribute__((format(printf, 2, 3))) inline Status errorf(tnd_status code, const char* fmt, ...) {
  char buf[1024];
  va_list ap;
  va_start(ap, fmt);
  std::vsnprintf(buf, sizeof buf, fmt, ap);
  va_end(ap);
  return Status(code, buf);
}

}  // namespace tnd

// TND_TRY returns from the enclosing function when the expression is a failed Status.
#define TND_TRY(expr)                                                           \
  do {                                                                          \
    if (::tnd::Status tnd_try_s_ = (expr); !tnd_try_s_.ok()) return tnd_try_s_; \
  } while (0)
