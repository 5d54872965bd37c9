#include "lib/chart.h"

#include <cairo-svg.h>
#include <cairo.h>
#include <fmt/format.h>
#include <fontconfig/fontconfig.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>

#include "lib/command.h"
#include "lib/text.h"

namespace flashwok::cli {
namespace {

// All lengths in points; a PNG has kPixels of them a point.
constexpr double kPanelWidth = 560, kPanelHeight = 430;
constexpr double kLeft = 78, kRight = 100, kTop = 44, kBottom = 52, kTitle = 40;
constexpr double kPixels = 2.0;

struct Paint3 {
  double red, green, blue;
};
constexpr Paint3 kInk{0.13, 0.13, 0.15};
constexpr Paint3 kSoft{0.45, 0.45, 0.48};
constexpr Paint3 kGrid{0.90, 0.90, 0.91};
// Okabe and Ito's palette: told apart by colour-blind readers too.
constexpr std::array<Paint3, 4> kLines{
    {{0.835, 0.369, 0.0}, {0.8, 0.475, 0.655}, {0.0, 0.447, 0.698}, {0.0, 0.62, 0.451}}};

struct Destroy {
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
  void operator()(cairo_t* context) const { cairo_destroy(context); }
};

bool IsSvg(const std::string& path) { return std::filesystem::path(path).extension() == ".svg"; }

cairo_status_t Append(void* closure, const unsigned char* bytes, unsigned length) {
  static_cast<std::string*>(closure)->append(reinterpret_cast<const char*>(bytes), length);
  return CAIRO_STATUS_SUCCESS;
}

void SetColour(cairo_t* c, const Paint3& p) { cairo_set_source_rgb(c, p.red, p.green, p.blue); }

// `align`: 0 starts at x, 0.5 is centred there, 1 ends there.
void Text(cairo_t* c, double x, double y, double align, double size, const std::string& text,
          bool bold = false) {
  cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                         bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(c, size);
  cairo_text_extents_t extents;
  cairo_text_extents(c, text.c_str(), &extents);
  cairo_move_to(c, x - align * extents.x_advance, y);
  cairo_show_text(c, text.c_str());
  cairo_new_path(c);
}

void Line(cairo_t* c, double x0, double y0, double x1, double y1) {
  cairo_move_to(c, x0, y0);
  cairo_line_to(c, x1, y1);
  cairo_stroke(c);
}

class PanelDrawing {
 public:
  PanelDrawing(cairo_t* context, const Panel& panel) : c_(context), panel_(panel) {
    for (const Series& series : panel.series) {
      for (const auto& [x, y] : series.points) {
        x_low_ = std::min(x_low_, std::log2(x));
        x_high_ = std::max(x_high_, std::log2(x));
        low_ = std::min(low_, std::log2(y));
        high_ = std::max(high_, std::log2(y));
        linear_ = std::min(linear_, std::log2(y) - std::log2(x));
      }
    }
    y_low_ = low_ - 1.6;
    y_high_ = high_ + 1.6;
  }

  void Draw() {
    Grid();
    // Guides to compare the lines with: slope 2 above all, slope 1 below all.
    const double middle = (x_low_ + x_high_) / 2;
    Guide(2.0, high_ + 0.9 - 2.0 * x_high_, middle);
    const double begins = high_ + 0.9 - 2.0 * (x_high_ - middle);
    if (begins > y_low_) Text(c_, X(middle) - 8, Y(begins) + 4, 1.0, 12, "grows as N\u00b2");
    Guide(1.0, linear_ - 0.9, x_low_);
    Text(c_, X(x_high_) - 6, Y(linear_ - 0.9 + x_high_) + 42, 1.0, 12, "grows as N");
    for (std::size_t i = 0; i < panel_.series.size(); ++i) Curve(i);
    Labels();
    SetColour(c_, kInk);
    Text(c_, kLeft, kTop - 18, 0.0, 14, panel_.title, true);
    SetColour(c_, kSoft);
    Text(c_, (kLeft + kPanelWidth - kRight) / 2, kPanelHeight - 12, 0.5, 12, panel_.x_label);
  }

 private:
  double X(double log_x) const {
    const double span = std::max(x_high_ - x_low_, 1e-9);
    return kLeft + (log_x - x_low_) / span * (kPanelWidth - kLeft - kRight);
  }
  double Y(double log_y) const {
    return kPanelHeight - kBottom -
           (log_y - y_low_) / (y_high_ - y_low_) * (kPanelHeight - kTop - kBottom);
  }

  void Grid() {
    cairo_set_line_width(c_, 1.0);
    const int step = std::max(1, static_cast<int>(std::ceil((y_high_ - y_low_) / 8.0)));
    for (int y = static_cast<int>(std::ceil(y_low_)); y <= y_high_; ++y) {
      if (y % step != 0) continue;
      SetColour(c_, kGrid);
      Line(c_, kLeft, Y(y), kPanelWidth - kRight, Y(y));
      SetColour(c_, kSoft);
      Text(c_, kLeft - 8, Y(y) + 4, 1.0, 11.5, panel_.format(std::exp2(y)));
    }
    for (int x = static_cast<int>(std::ceil(x_low_)); x <= x_high_; ++x) {
      SetColour(c_, kGrid);
      Line(c_, X(x), kTop, X(x), kPanelHeight - kBottom);
      SetColour(c_, kSoft);
      Text(c_, X(x), kPanelHeight - kBottom + 17, 0.5, 11.5, fmt::format("{:.0f}", std::exp2(x)));
    }
  }

  // A dotted line y = offset + slope * x in log2, from x0 or where it enters the panel.
  void Guide(double slope, double offset, double x0) {
    x0 = std::max(x0, (y_low_ - offset) / slope);
    const std::array<double, 2> dashes{2.0, 4.0};
    SetColour(c_, kSoft);
    cairo_set_line_width(c_, 1.2);
    cairo_set_dash(c_, dashes.data(), 2, 0.0);
    Line(c_, X(x0), Y(offset + slope * x0), X(x_high_), Y(offset + slope * x_high_));
    cairo_set_dash(c_, nullptr, 0, 0.0);
  }

  void Curve(std::size_t index) {
    const Series& series = panel_.series[index];
    SetColour(c_, kLines[index % kLines.size()]);
    cairo_set_line_width(c_, 2.2);
    cairo_set_line_join(c_, CAIRO_LINE_JOIN_ROUND);
    for (const auto& [x, y] : series.points) cairo_line_to(c_, X(std::log2(x)), Y(std::log2(y)));
    cairo_stroke(c_);
    for (const auto& [x, y] : series.points) Marker(index, X(std::log2(x)), Y(std::log2(y)));
  }

  // A shape of its own for each line, so that colour is not needed.
  void Marker(std::size_t index, double x, double y) {
    constexpr double kSize = 4.2;
    switch (index % 4) {
      case 0: cairo_arc(c_, x, y, kSize, 0.0, 6.2832); break;
      case 1: cairo_rectangle(c_, x - kSize, y - kSize, 2 * kSize, 2 * kSize); break;
      case 2:
        cairo_move_to(c_, x, y - 1.3 * kSize);
        cairo_line_to(c_, x + 1.2 * kSize, y + kSize);
        cairo_line_to(c_, x - 1.2 * kSize, y + kSize);
        break;
      default:
        for (const auto& [dx, dy] : {std::pair{0.0, -1.4}, {1.4, 0.0}, {0.0, 1.4}, {-1.4, 0.0}}) {
          cairo_line_to(c_, x + dx * kSize, y + dy * kSize);
        }
    }
    cairo_close_path(c_);
    cairo_fill(c_);
  }

  // Each line's name at its right end, moved apart where they would overlap.
  void Labels() {
    constexpr double kSpacing = 15.0;
    std::vector<std::pair<double, std::size_t>> ends;
    for (std::size_t i = 0; i < panel_.series.size(); ++i) {
      if (panel_.series[i].points.empty()) continue;
      ends.emplace_back(Y(std::log2(panel_.series[i].points.back().second)), i);
    }
    std::sort(ends.begin(), ends.end());
    double previous = -1e9;
    for (const auto& [y, index] : ends) {
      const Series& series = panel_.series[index];
      const double end = X(std::log2(series.points.back().first));
      previous = std::max(y, previous + kSpacing);
      SetColour(c_, kLines[index % kLines.size()]);
      Text(c_, end + 12, previous + 4, 0.0, 13, series.label, true);
    }
  }

  cairo_t* c_;
  const Panel& panel_;
  double x_low_ = 1e9, x_high_ = -1e9, low_ = 1e9, high_ = -1e9;  // all in log2
  double linear_ = 1e9;                                           // the least of log2(y) - log2(x)
  double y_low_ = 0, y_high_ = 0;
};

// The content of the file.
std::string Render(const std::string& path, const std::string& title,
                   const std::vector<Panel>& panels) {
  const double width = kPanelWidth * static_cast<double>(panels.size());
  const double height = kPanelHeight + kTitle;
  std::string content;
  const std::unique_ptr<cairo_surface_t, Destroy> surface(
      IsSvg(path)
          ? cairo_svg_surface_create_for_stream(Append, &content, width, height)
          : cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width * kPixels),
                                       static_cast<int>(height * kPixels)));
  {
    const std::unique_ptr<cairo_t, Destroy> context(cairo_create(surface.get()));
    cairo_t* c = context.get();
    if (!IsSvg(path)) cairo_scale(c, kPixels, kPixels);
    cairo_set_source_rgb(c, 1.0, 1.0, 1.0);
    cairo_paint(c);
    SetColour(c, kInk);
    Text(c, kLeft, 30, 0.0, 15, title);
    for (std::size_t i = 0; i < panels.size(); ++i) {
      cairo_save(c);
      cairo_translate(c, kPanelWidth * static_cast<double>(i), kTitle);
      PanelDrawing(c, panels[i]).Draw();
      cairo_restore(c);
    }
  }
  if (!IsSvg(path)) cairo_surface_write_to_png_stream(surface.get(), Append, &content);
  cairo_surface_finish(surface.get());
  const cairo_status_t status = cairo_surface_status(surface.get());
  if (status != CAIRO_STATUS_SUCCESS && status != CAIRO_STATUS_SURFACE_FINISHED) {
    throw Failure(fmt::format("{}: cannot be drawn: {}", path, cairo_status_to_string(status)));
  }
  return content;
}

}  // namespace

void RequirePicture(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".svg" || extension == ".png") return;
  throw BadInput(fmt::format("--picture: is '{}', must end in .svg or .png", path));
}

void DrawPanels(const std::string& path, const std::string& title,
                const std::vector<Panel>& panels) {
  RequirePicture(path);
  const std::string content = Render(path, title, panels);
  cairo_debug_reset_static_data();  // gives the fonts back, which a leak checker would miss
  FcFini();
  WriteFile(path, content);
}

}  // namespace flashwok::cli
