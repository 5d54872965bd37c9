// What the module watches a call with: signals of the user, and events of the kernel.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "flashwok/attention.h"

namespace flashwok::python {

// Lets a signal handler of Python run in a long call, and ends the call when it raises, as the one
// of Ctrl-C does.
class Interrupt {
 public:
  void Watch(Execution* execution) {
    execution->stop = Ask;
    execution->stop_data = this;
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{50};

  static std::int32_t Ask(void* data) {
    Interrupt& self = *static_cast<Interrupt*>(data);
    const auto now = std::chrono::steady_clock::now();
    if (now < self.next_) return 0;
    self.next_ = now + kInterval;
    nanobind::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0 ? 1 : 0;
  }

  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kInterval;
};

// Keeps the events of a call; each track is written by its own worker alone.
class Recorder : public Observer {
 public:
  static constexpr std::int64_t kMaxEvents = std::int64_t{1} << 22;

  Recorder() : tracks_(4096) {}  // the most workers that a call may ask for
  void OnEvent(const Event& event) override {
    if (count_.fetch_add(1, std::memory_order_relaxed) >= kMaxEvents) return;
    tracks_[static_cast<std::size_t>(event.track)].push_back(event);
  }
  bool full() const { return count_ > kMaxEvents; }

  // All of them, a list of 12-tuples' worth of bytes: see kFields.
  std::string Bytes() const {
    std::string bytes;
    for (const auto& track : tracks_) {
      for (const Event& event : track) Put(&bytes, event);
    }
    return bytes;
  }
  // How numpy reads an event.
  static constexpr const char* kFields =
      "t0:i8 duration:i8 bytes:i8 flops:i8 track:i4 head:i4 q_tile:i4 k_tile:i4 "
      "kind:u1 tensor:u1 stage:u1 masked:u1";

 private:
  static void Put(std::string* bytes, const Event& event) {
    const auto put = [bytes](auto value) {
      bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    put(event.t0), put(event.duration), put(event.bytes), put(event.flops);
    put(event.track), put(event.head), put(event.q_tile), put(event.k_tile);
    put(static_cast<std::uint8_t>(event.kind)), put(static_cast<std::uint8_t>(event.role));
    put(event.stage), put(event.masked);
  }

  std::vector<std::vector<Event>> tracks_;
  std::atomic<std::int64_t> count_{0};
};

}  // namespace flashwok::python
