#include "lib/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>

#include "io/output_file.h"
#include "lib/command.h"

namespace flashwok::cli {
namespace {

// Code points, for text whose every character is one column wide.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

}  // namespace

std::string FormatSeconds(double seconds) {
  if (seconds >= 100.0) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1.0) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 0.001) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.1 ? 2 : 0);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string FormatFlops(double flops) {
  return Scaled(flops, 1000.0, {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"});
}

std::string FormatError(double error) { return fmt::format("{:.1e}", error); }

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

void Table::Row(std::vector<std::string> cells, Colour colour) {
  lines_.push_back({std::move(cells), colour});
}

void Table::Note(std::string name, std::string text) {
  lines_.push_back({{std::move(name), std::move(text)}, Colour::kDim});
}

std::vector<std::size_t> Table::Widths() const {
  std::vector<std::size_t> widths;
  for (const std::string& title : titles_) widths.push_back(Width(title));
  for (const Line& line : lines_) {
    const bool note = line.cells.size() != titles_.size();
    for (std::size_t column = 0; column < (note ? 1 : line.cells.size()); ++column) {
      widths[column] = std::max(widths[column], Width(line.cells[column]));
    }
  }
  return widths;
}

void Table::Print() const {
  const std::vector<std::size_t> widths = Widths();
  const auto print = [&](const std::vector<std::string>& cells, Colour colour) {
    std::string text = cells[0] + std::string(widths[0] - Width(cells[0]), ' ');
    for (std::size_t column = 1; column < cells.size(); ++column) {
      const std::size_t width = Width(cells[column]);
      const bool note = cells.size() != titles_.size();
      text += std::string(2 + (note ? 0 : widths[column] - width), ' ') + cells[column];
    }
    fmt::print("{}\n", Paint(colour, text));
  };
  print(titles_, Colour::kBold);
  for (const Line& line : lines_) print(line.cells, line.colour);
}

void PrintJson(const Json& document) { fmt::print("{}\n", document.dump(2)); }

void RequireOutputs(const std::vector<Output>& outputs) {
  std::map<std::filesystem::path, const Output*> targets;
  for (const Output& output : outputs) {
    const auto& [flag, path] = output;
    if (path.empty()) continue;
    const std::filesystem::path absolute = std::filesystem::absolute(path);
    const std::filesystem::path folder = absolute.parent_path();
    if (!std::filesystem::is_directory(folder)) {
      throw BadInput(fmt::format("{}: is '{}', but {} is no folder", flag, path, folder.string()));
    }
    if (::access(folder.c_str(), W_OK | X_OK) != 0) {
      throw BadInput(fmt::format("{}: is '{}', but {} cannot be written to: {}", flag, path,
                                 folder.string(), std::strerror(errno)));
    }
    std::error_code error;
    const auto kind = std::filesystem::status(absolute, error).type();
    if (kind == std::filesystem::file_type::none) {
      throw BadInput(fmt::format("{}: is '{}': {}", flag, path, error.message()));
    }
    if (kind != std::filesystem::file_type::not_found &&
        kind != std::filesystem::file_type::regular) {
      throw BadInput(fmt::format("{}: is '{}', must be a file or absent", flag, path));
    }
    const auto target = std::filesystem::canonical(folder) / absolute.filename();
    const auto [other, is_new] = targets.emplace(target, &output);
    if (is_new) continue;
    throw BadInput(fmt::format("{}: is '{}', must be another file than that of {}", flag, path,
                               other->second->flag));
  }
}

void WriteFile(const std::string& path, std::string_view content) {
  io::OutputFile file(path);
  Require(file.Create());
  file.Append(std::as_bytes(std::span(content)));
  Require(file.Commit());
}

}  // namespace flashwok::cli
