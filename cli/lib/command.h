// What the subcommands share: exit codes, the two ways to fail, and how each is registered.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>

#include "flashwok/status.h"

namespace flashwok::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;    // out of tolerance, or the run failed
inline constexpr int kExitBadInput = 2;  // a file, an argument or a request that is refused

// What the user gave cannot be used; one line naming file, argument, value and limit.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The system failed under a valid request.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws what `status` says; `prefix` tells where it comes from.
void Require(const Status& status, const std::string& prefix = {});

struct Command {
  CLI::App* app;
  std::function<int()> run;  // returns the exit code
};

Command AddRun(CLI::App& root);
Command AddCompare(CLI::App& root);
Command AddVerify(CLI::App& root);
Command AddTrace(CLI::App& root);
Command AddBench(CLI::App& root);
Command AddInfo(CLI::App& root);

}  // namespace flashwok::cli
