// Figures for people: units, tables, JSON files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/units.h"
#include "lib/terminal.h"

namespace flashwok::cli {

using Json = nlohmann::ordered_json;

std::string FormatSeconds(double seconds);  // "12.3 ms"
std::string FormatFlops(double flops);      // "4.29 GFLOP"
std::string FormatError(double error);      // "2.4e-07"

std::vector<std::string> Split(std::string_view text, char separator);

// Columns padded to their widest cell; the first to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> titles) : titles_(std::move(titles)) {}

  void Row(std::vector<std::string> cells, Colour colour = Colour::kPlain);
  // A row of one cell beside its name, across the other columns.
  void Note(std::string name, std::string text);
  void Print() const;

 private:
  struct Line {
    std::vector<std::string> cells;
    Colour colour;
  };
  std::vector<std::size_t> Widths() const;

  std::vector<std::string> titles_;
  std::vector<Line> lines_;
};

// One document on standard output.
void PrintJson(const Json& document);

// A flag and the path that it writes to, or an empty one.
struct Output {
  std::string flag, path;
};
// Throws BadInput unless each path is a file, or absent, in a folder that can be written to, and no
// two are one file: said before the work, not after it.
void RequireOutputs(const std::vector<Output>& outputs);

// The whole file, or none. Throws BadInput when it cannot be written.
void WriteFile(const std::string& path, std::string_view content);

}  // namespace flashwok::cli
