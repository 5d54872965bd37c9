// Status: how every call of FlashWok reports success or the one reason why not.
#pragma once

#include <string>
#include <utility>

namespace flashwok {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // a value breaks the contract; the message names argument, value and limit
  kUnsupported,      // a valid request that this kernel or device cannot run; the message says why
  kOutOfMemory,      // the request needs more memory than allowed; the message gives the figure
  kInternal,         // a failure of the system below (a CUDA error, a thread that could not start)
  kCancelled,        // Execution::stop ended the call
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Invalid(std::string message) {
    return {StatusCode::kInvalidArgument, std::move(message)};
  }
  static Status Unsupported(std::string message) {
    return {StatusCode::kUnsupported, std::move(message)};
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace flashwok
