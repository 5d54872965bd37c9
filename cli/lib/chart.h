// Log-log panels side by side, drawn to an SVG or a PNG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace flashwok::cli {

struct Series {
  std::string label;
  std::vector<std::pair<double, double>> points;  // ascending in x, all above zero
};

struct Panel {
  std::string title;
  std::string x_label;
  std::string (*format)(double);  // of y
  std::vector<Series> series;
};

// Throws BadInput unless `path` ends in .svg or .png; for a check before the measurement.
void RequirePicture(const std::string& path);

void DrawPanels(const std::string& path, const std::string& title,
                const std::vector<Panel>& panels);

}  // namespace flashwok::cli
