// A child process that answers one line for each line it is sent.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace flashwok::cli {

class Coprocess {
 public:
  explicit Coprocess(const std::vector<std::string>& command);
  ~Coprocess();  // closes its input and waits for its end
  Coprocess(const Coprocess&) = delete;
  Coprocess& operator=(const Coprocess&) = delete;

  // Throws Failure when the child is gone.
  std::string Ask(const std::string& line);

 private:
  [[noreturn]] void Gone() const;

  std::string name_;
  pid_t pid_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
  std::string pending_;
};

}  // namespace flashwok::cli
