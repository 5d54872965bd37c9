// The border that no exception crosses: each C function that can fail is one body in a Guard.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <string_view>

#include "api/c_convert.h"

namespace flashwok {

// Where the caller wants the message; text may be null.
struct Message {
  char* text;
  std::size_t size;
};

inline flashwok_status Report(StatusCode code, std::string_view text, Message message) {
  CopyText(text, message.text, message.size);
  return static_cast<flashwok_status>(code);
}

// Calls body(check), which returns the status of the call, or anything once `check` has refused.
template <typename Body>
flashwok_status Guard(Message message, const Body& body) noexcept {
  try {
    Check check;
    const Status status = body(check);
    const Status& first = check.status().ok() ? status : check.status();
    return Report(first.code(), first.message(), message);
  } catch (const std::bad_alloc&) {
    return Report(StatusCode::kOutOfMemory, "memory ran out", message);
  } catch (const std::exception& error) {
    return Report(StatusCode::kInternal, error.what(), message);
  } catch (...) {
    return Report(StatusCode::kInternal, "an unknown exception", message);
  }
}

}  // namespace flashwok
