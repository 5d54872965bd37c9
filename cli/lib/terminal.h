// Colours and the progress bar: both only on a terminal, so that files and pipes stay plain.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "flashwok/trace.h"

namespace flashwok::cli {

enum class Colour { kPlain, kBold, kDim, kGood, kBad, kAccent };

// Whether file descriptor `fd` takes colours: a terminal, not dumb, and NO_COLOR unset or empty.
bool TakesColour(int fd);

// `text` in `colour` for standard output, unchanged where that takes none.
std::string Paint(Colour colour, const std::string& text);

// A bar on standard error that appears after one second and is gone at the end. Nothing at all
// where standard error is no terminal.
class Progress {
 public:
  Progress(std::string label, double total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  bool visible() const { return terminal_; }
  void Label(const std::string& label);
  void Add(double amount);

 private:
  void Loop();
  void Draw();

  const bool terminal_;
  const double total_;
  std::atomic<double> done_{0.0};
  std::string label_;
  bool stop_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

// Moves a bar by the products of a running call.
class ProgressObserver : public Observer {
 public:
  explicit ProgressObserver(Progress& progress) : progress_(progress) {}
  void OnEvent(const Event& event) override {
    if (event.kind == EventKind::kProduct) progress_.Add(static_cast<double>(event.flops));
  }

 private:
  Progress& progress_;
};

}  // namespace flashwok::cli
