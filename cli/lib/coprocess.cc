#include "lib/coprocess.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lib/command.h"

namespace flashwok::cli {

Coprocess::Coprocess(const std::vector<std::string>& command)
    : name_(fmt::format("{}", fmt::join(command, " "))) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) {
    throw Failure("no pipe for " + name_);
  }
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw Failure("no process for " + name_);
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_child_ = in[1];
  from_child_ = out[0];
  signal(SIGPIPE, SIG_IGN);  // a child that is gone is an error of write
}

Coprocess::~Coprocess() {
  close(to_child_);
  close(from_child_);
  waitpid(pid_, nullptr, 0);
}

void Coprocess::Gone() const { throw Failure(name_ + ": ended without an answer"); }

std::string Coprocess::Ask(const std::string& line) {
  const std::string message = line + "\n";
  for (std::size_t sent = 0; sent < message.size();) {
    const ssize_t count = write(to_child_, message.data() + sent, message.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) Gone();
    sent += static_cast<std::size_t>(count);
  }
  while (true) {
    const std::size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string answer = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return answer;
    }
    std::array<char, 4096> buffer{};
    const ssize_t count = read(from_child_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) Gone();
    pending_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace flashwok::cli
