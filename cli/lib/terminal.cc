#include "lib/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace flashwok::cli {
namespace {

constexpr int kBarWidth = 28;
constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kRedraw = std::chrono::milliseconds(100);

const char* Code(Colour colour) {
  switch (colour) {
    case Colour::kBold: return "1";
    case Colour::kDim: return "2";
    case Colour::kGood: return "32";
    case Colour::kBad: return "31";
    case Colour::kAccent: return "36";
    case Colour::kPlain: break;
  }
  return "0";
}

bool IsTerminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

}  // namespace

bool TakesColour(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return IsTerminal(fd) && (no_color == nullptr || *no_color == '\0');
}

std::string Paint(Colour colour, const std::string& text) {
  static const bool enabled = TakesColour(STDOUT_FILENO);
  if (!enabled || colour == Colour::kPlain) return text;
  return fmt::format("\x1b[{}m{}\x1b[0m", Code(colour), text);
}

Progress::Progress(std::string label, double total)
    : terminal_(IsTerminal(STDERR_FILENO)), total_(std::max(total, 1.0)), label_(std::move(label)) {
  if (terminal_) thread_ = std::thread(&Progress::Loop, this);
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

void Progress::Label(const std::string& label) {
  const std::lock_guard lock(mutex_);
  label_ = label;
}

void Progress::Add(double amount) { done_.fetch_add(amount, std::memory_order_relaxed); }

void Progress::Loop() {
  std::unique_lock lock(mutex_);
  auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
  while (!wake_.wait_for(lock, pause, [this] { return stop_; })) {
    Draw();
    pause = kRedraw;
  }
}

void Progress::Draw() {
  const double share = std::clamp(done_.load() / total_, 0.0, 1.0);
  const int filled = static_cast<int>(share * kBarWidth);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  fmt::print(stderr, "\r\x1b[K{} [{:#<{}}{:.<{}}] {:3.0f} % {:.0f} s", label_, "", filled, "",
             kBarWidth - filled, share * 100.0, seconds);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace flashwok::cli
