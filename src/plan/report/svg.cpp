// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "cadenza/base/units.hpp"
#include "cadenza/plan/report.hpp"
#include "picture.hpp"
#include "summary.hpp"

namespace cadenza::plan {
namespace {

constexpr double kWidth = 960;  // of the picture, in pixels, as all below
constexpr double kPanel = 224;  // side of the longest document's matrix
constexpr double kLeast = 32;   // of the shortest's
constexpr double kGap = 24;     // between panels
constexpr double kLine = 18;    // of text
constexpr std::size_t kDocuments = 16;
constexpr std::int64_t kCells = 64;    // a side, where stripes are drawn cell by cell
constexpr std::int64_t kBlocks = 224;  // a side of a sparse pattern
constexpr double kColumn = 0.8;        // least width of a column of it

/// Neighbouring ranks have colours far apart; all are readable on white and on black.
std::string colour(Rank rank) {
  const double hue = std::fmod(211 + 137.508 * rank, 360.0);
  const double lightness = rank % 2 == 0 ? 0.52 : 0.62;
  const double spread = 0.65 * std::min(lightness, 1 - lightness);
  const auto channel = [&](double n) {
    const double k = std::fmod(n + hue / 30, 12.0);
    const double value = lightness - spread * std::clamp(std::min(k - 3, 9 - k), -1.0, 1.0);
    return static_cast<int>(std::lround(255 * value));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(8), channel(4));
}

struct Point {
  double x, y;
};

/// The part of a polygon where side(point) is above 0. Its edges are horizontal, vertical or along
/// the boundary, which is at 45 degrees.
template <typename Side>
std::vector<Point> clipped(const std::vector<Point>& polygon, Side&& side) {
  std::vector<Point> kept;
  for (std::size_t i = 0; i < polygon.size(); ++i) {
    const Point& from = polygon[i > 0 ? i - 1 : polygon.size() - 1];
    const Point& to = polygon[i];
    const double before = side(from);
    const double after = side(to);
    if ((before > 0) != (after > 0)) {
      const double whole = before - after;
      kept.push_back(
          {from.x + before * (to.x - from.x) / whole, from.y + before * (to.y - from.y) / whole});
    }
    if (after > 0) kept.push_back(to);
  }
  return kept;
}

/// The part of a task that its mask allows: the rectangle between two lines at 45 degrees.
std::vector<Point> outline(const Task& task) {
  const auto [q0, q1] =
      std::pair(static_cast<double>(task.q.begin), static_cast<double>(task.q.end));
  const auto [k0, k1] =
      std::pair(static_cast<double>(task.k.begin), static_cast<double>(task.k.end));
  std::vector<Point> points = {{k0, q0}, {k1, q0}, {k1, q1}, {k0, q1}};
  const auto high = static_cast<double>(task.band.high);
  const auto low = static_cast<double>(task.band.low);
  if (k1 > q0 + high) points = clipped(points, [&](Point p) { return p.y + high - p.x; });
  if (k0 < q1 + low) points = clipped(points, [&](Point p) { return p.x - p.y - low; });
  return points;
}

/// What every index has.
SparsePattern always_active(SparseRule rule, std::int64_t length) {
  if (rule.kind == SparseKind::xattention) {
    std::vector<bool> first;  // block of every row
    for (std::int64_t row = 0; row < rule.block_rows({0, length}).end; ++row) {
      first.push_back(true);
      first.resize(first.size() + static_cast<std::size_t>(row), false);
    }
    return SparsePattern::blocks(length, rule.block, first);
  }
  rule.columns = std::min(rule.columns, rule.sinks);
  rule.slashes = std::min(rule.slashes, rule.window);
  const std::vector<std::uint32_t> nothing(static_cast<std::size_t>(length));
  return choose_pattern(rule, {nothing, nothing});
}

/// The outline of a pattern's active blocks and columns among the first `tokens`, which may reach
/// beyond the mask. Of rows of blocks that are too fine for the picture, every n-th stands for n.
std::string outline(const SparsePattern& pattern, std::int64_t tokens, Point corner, double side) {
  std::string path;
  const double scale = side / static_cast<double>(tokens);
  const auto add = [&](Range q, Range k, double least) {
    const auto place = [&](std::int64_t token) { return scale * static_cast<double>(token); };
    const double width = std::max(least, place(k.size()));
    fmt::format_to(std::back_inserter(path), "M{:.2f} {:.2f}h{:.2f}v{:.2f}h-{:.2f}z",
                   corner.x + place(k.begin), corner.y + place(q.begin), width, place(q.size()),
                   width);
  };
  const std::int64_t rows = (tokens + pattern.block() - 1) / pattern.block();
  const std::int64_t together = (rows + kBlocks - 1) / kBlocks;
  for (std::int64_t row = 0; row < rows; row += together) {
    const Range q = {row * pattern.block(), std::min(tokens, (row + together) * pattern.block())};
    pattern.for_each_active(row, {0, tokens}, [&](Range k) { add(q, k, 0); });
  }
  for (const std::int64_t key : pattern.columns()) {
    if (key < tokens) add({key, tokens}, {key, key + 1}, kColumn);
  }
  return path;
}

/// Who computes a document's attention, for a slice of its heads.
struct Matrix {
  Matrix(const Plan& plan, int document, Range heads, Point corner, double side)
      : tokens(plan.workload.lengths[static_cast<std::size_t>(document)]) {
    if (plan.workload.order.natural()) {
      draw_tasks(plan, document, heads, corner, side / static_cast<double>(tokens));
      return;
    }
    const Picture picture(plan, document, heads, kCells);
    tokens = picture.tokens();
    draw_cells(picture, corner, side / static_cast<double>(picture.size()));
  }

  std::int64_t tokens;  ///< of the document that are shown, its first
  std::string drawn;

 private:
  void draw_tasks(const Plan& plan, int document, Range heads, Point corner, double scale) {
    for (const Stage& stage : plan.stages) {
      for (const PlacedTask& placed : stage.tasks) {
        if (placed.task.document != document || !placed.task.heads.contains(heads)) continue;
        std::string points;
        for (const Point& p : outline(placed.task)) {
          points += fmt::format("{:.1f},{:.1f} ", corner.x + p.x * scale, corner.y + p.y * scale);
        }
        drawn +=
            fmt::format("<polygon points=\"{}\" fill=\"{}\"/>\n", points, colour(placed.server));
      }
    }
  }

  /// Runs of cells of one server in a row are one rectangle.
  void draw_cells(const Picture& picture, Point corner, double side) {
    for (std::int64_t row = 0; row < picture.size(); ++row) {
      for (std::int64_t begin = 0, end = 0; begin <= row; begin = end) {
        const Rank server = picture.server(row, begin);
        while (end <= row && picture.server(row, end) == server) ++end;
        if (server < 0) continue;
        drawn += fmt::format(
            "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
            corner.x + side * static_cast<double>(begin),
            corner.y + side * static_cast<double>(row), side * static_cast<double>(end - begin),
            side, colour(server));
      }
    }
  }
};

class Drawing {
 public:
  explicit Drawing(const SparseIndex& index) : index_(index) {}

  void text(double x, double y, std::string_view style, std::string_view what) {
    fmt::format_to(out(), "<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, style,
                   what);
  }

  void title(const Plan& plan, const Place& place, const Prediction& prediction,
             const std::string& rates) {
    y_ += kLine;
    const double before = imbalance_at_home(plan.workload, cost_at_home(plan.workload));
    text(
        kGap, y_, "title",
        fmt::format(
            "tick {}{}{}: imbalance {:.3f} before balancing, {:.3f} planned; forward of a layer {} "
            "predicted ({}), {} at best",
            place.tick, describe_layers(plan.workload), place.half == 0 ? "" : ", second half",
            before, imbalance(plan), format_duration(prediction.predicted_seconds),
            rates == cost::nominal_rates() ? "nominal rates" : rates,  // there is little room
            format_duration(prediction.lower_bound_seconds)));
    y_ += kLine;
  }

  void legend(const Plan& plan) {
    double x = kGap;
    const std::vector<double> fair = fair_costs(plan);
    for (const Rank rank : plan.workload.servers) {
      const auto index = static_cast<std::size_t>(rank);
      const std::string what =
          fmt::format("rank {}: {:.0f} %, sends {}", rank,
                      100 * plan.cost_per_rank[index] / std::max(1.0, fair[index]),
                      format_bytes(static_cast<double>(plan.bytes_sent_per_rank[index])));
      if (x + 230 > kWidth) {
        x = kGap;
        y_ += kLine;
      }
      fmt::format_to(out(),
                     "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" fill=\"{}\"/>\n",
                     x, y_ - 10, colour(rank));
      text(x + 16, y_, "label", what);
      x += 230;
    }
    y_ += kLine;
    const auto sparse = [&](std::int64_t length) { return !plan.workload.sparse.is_dense(length); };
    if (std::ranges::none_of(plan.workload.lengths, sparse)) return;
    text(kGap, y_, "label",
         indexed() ? "sparse documents: blocks and columns of the first head, under the index given"
                   : "sparse documents: faint is what may be chosen at run time, strong what "
                     "always is");
    y_ += kLine;
  }

  void documents(const Plan& plan, int first_document) {
    const std::vector<int> longest = longest_documents(plan, kDocuments);
    if (longest.empty()) return;
    const auto length = [&](int d) { return plan.workload.lengths[static_cast<std::size_t>(d)]; };
    const double scale =
        kPanel / static_cast<double>(std::max<std::int64_t>(1, length(longest[0])));
    double x = kGap;
    double row = 0;
    for (const int document : longest) {
      const double side = std::max(kLeast, scale * static_cast<double>(length(document)));
      for (const Range heads : head_slices(plan, document)) {
        const double width = std::max(side, 96.0);
        if (x > kGap && x + width + kGap > kWidth) {
          x = kGap;
          y_ += row;
          row = 0;
        }
        panel(plan, document, heads, x, side, first_document);
        x += width + kGap;
        row = std::max(row, side + 3 * kLine);
      }
    }
    y_ += row;
    const std::size_t more = plan.workload.lengths.size() - longest.size();
    if (more > 0) {
      text(kGap, y_, "label", fmt::format("and {} shorter documents", more));
      y_ += kLine;
    }
  }

  std::string finish() const {
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
               "width=\"{0:.0f}\" height=\"{1:.0f}\">\n"
               "<style>svg{{color:#222;background:#fff}}"
               "@media(prefers-color-scheme:dark){{svg{{color:#ddd;background:#161616}}}}"
               "text{{fill:currentColor;font:12px sans-serif}}.title{{font-weight:bold}}"
               ".frame{{fill:none;stroke:currentColor;stroke-opacity:.5}}</style>\n",
               kWidth, y_ + kLine) +
           body_ + "</svg>\n";
  }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(body_); }

  bool indexed() const { return index_.documents() > 0; }

  void panel(const Plan& plan, int document, Range heads, double x, double side,
             int first_document) {
    const std::int64_t length = plan.workload.lengths[static_cast<std::size_t>(document)];
    const bool sliced = heads.size() < plan.workload.shape.heads;
    const double top = y_ + kLine;
    const Matrix matrix(plan, document, heads, {x, top}, side);
    if (plan.workload.sparse.is_dense(length)) {
      body_ += matrix.drawn;
    } else {
      const SparsePattern pattern = indexed() ? *index_.of(first_document + document, heads.begin)
                                              : always_active(plan.workload.sparse, length);
      if (!indexed()) fmt::format_to(out(), "<g opacity=\"0.3\">\n{}</g>\n", matrix.drawn);
      const std::string active = outline(pattern, matrix.tokens, {x, top}, side);
      fmt::format_to(out(),
                     "<clipPath id=\"pattern{0}\"><path d=\"{1}\"/></clipPath>\n"
                     "<g clip-path=\"url(#pattern{0})\">\n{2}</g>\n",
                     patterns_++, active, matrix.drawn);
    }
    fmt::format_to(out(), "<path class=\"frame\" d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}Z\"/>\n", x,
                   top, top + side, x + side);
    text(x, y_ + kLine - 5, "label",
         fmt::format("{}: {} tokens", first_document + document, length));
    std::string below;
    if (sliced) below = fmt::format("heads {}-{}", heads.begin, heads.end - 1);
    if (matrix.tokens < length) below = fmt::format("first {} tokens", matrix.tokens);
    if (!below.empty()) text(x, top + side + kLine - 4, "label", below);
  }

  const SparseIndex& index_;
  int patterns_ = 0;  ///< drawn
  std::string body_;
  double y_ = 4;
};

}  // namespace

std::string to_svg(const std::vector<Plan>& plans, const StepNotes& notes) {
  Drawing drawing(notes.index);
  const std::vector<Place> where = places(plans);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    drawing.title(plans[i], where[i], prediction_of(plans, i, notes), rates_of(notes));
    drawing.legend(plans[i]);
    drawing.documents(plans[i], where[i].first_document);
  }
  return drawing.finish();
}

}  // namespace cadenza::plan
