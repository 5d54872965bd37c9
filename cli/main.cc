// The command line: parse, dispatch, one line on standard error when something is wrong.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <vector>

#include "flashwok/attention.h"
#include "io/output_file.h"
#include "lib/command.h"

namespace {

namespace cli = flashwok::cli;

constexpr const char* kFooter =
    "Exit codes: 0 done; 1 out of tolerance, or the run failed; 2 bad input, one line on standard "
    "error.\nColours and progress bars appear on a terminal only; NO_COLOR turns colours off.";

int Fail(const std::string& where, const std::string& what, int code) {
  fmt::print(stderr, "{}: {}\n", where, what);
  return code;
}

// Standard output took everything, or the run failed.
int Flush(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return Fail("flashwok", "standard output cannot be written", cli::kExitFailed);
}

// An empty value is a mistake, such as an unset variable of a shell, never a way to leave one out.
void RefuseEmptyValues(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_min() == 0) continue;
    option->check([](const std::string& value) {
      return std::string(value.empty() ? "is empty, must have a value or be left out" : "");
    });
  }
}

int Run(const cli::Command& command) {
  const std::string where = "flashwok " + command.app->get_name();
  try {
    return command.run();
  } catch (const cli::BadInput& error) {
    return Fail(where, error.what(), cli::kExitBadInput);
  } catch (const std::bad_alloc&) {
    return Fail(where, "out of memory", cli::kExitFailed);
  } catch (const std::exception& error) {
    return Fail(where, error.what(), cli::kExitFailed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // the write says so instead
  flashwok::io::OutputFile::RemoveOnSignals();
  CLI::App app("FlashWok: exact attention, standard and Flash Attention V1, V2, V3 side by side",
               "flashwok");
  app.footer(kFooter);
  app.set_version_flag("--version", flashwok::Version());
  app.require_subcommand(1);
  const std::vector<cli::Command> commands = {cli::AddRun(app),    cli::AddCompare(app),
                                              cli::AddVerify(app), cli::AddTrace(app),
                                              cli::AddBench(app),  cli::AddInfo(app)};
  for (const cli::Command& command : commands) RefuseEmptyValues(*command.app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return Flush(app.exit(error));
    if (argc < 2) {
      return Fail("flashwok", "no command; flashwok --help lists them", cli::kExitBadInput);
    }
    if (app.get_subcommands().empty()) {
      return Fail("flashwok",
                  fmt::format("'{}' is no command; flashwok --help lists them", argv[1]),
                  cli::kExitBadInput);
    }
    const std::string where = "flashwok " + app.get_subcommands().front()->get_name();
    return Fail(where, fmt::format("{}; {} --help lists its options", error.what(), where),
                cli::kExitBadInput);
  }
  for (const cli::Command& command : commands) {
    if (command.app->parsed()) return Flush(Run(command));
  }
  return cli::kExitBadInput;
}
