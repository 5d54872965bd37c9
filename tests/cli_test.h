// Runs the built `flashwok` and keeps what it said.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace flashwok::test {

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CliTest : public ::testing::Test {
 protected:
  struct Outcome {
    int code = -1;
    std::string out;
    std::string err;
    nlohmann::json Json() const { return nlohmann::json::parse(out, nullptr, false); }
  };

  CliTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("flashwok_cli_") + info->name() + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~CliTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string Data(const std::string& name) {
    return std::string(FLASHWOK_SOURCE_DIR) + "/examples/data/" + name;
  }

  Outcome Run(const std::string& arguments) const {
    const std::string command = program_ + " " + arguments + " >" +
                                Path(".out") + " 2>" + Path(".err") + " </dev/null";
    const int status = std::system(command.c_str());
    Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(Path(".out")),
                    ReadFile(Path(".err"))};
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << "colour in a pipe: " << arguments;
    return outcome;
  }

  // A run that must succeed and print one JSON document.
  nlohmann::json RunJson(const std::string& arguments) const {
    const Outcome outcome = Run(arguments + " --json");
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.err;
    const nlohmann::json json = outcome.Json();
    EXPECT_FALSE(json.is_discarded()) << outcome.out;
    return json;
  }

  // Files that a command left, other than what Run keeps.
  int FilesLeft() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      count += name != ".out" && name != ".err";
    }
    return count;
  }

  std::filesystem::path folder_;
  std::string program_ = FLASHWOK_CLI_PATH;  // after what a shell takes before it
};

}  // namespace flashwok::test
