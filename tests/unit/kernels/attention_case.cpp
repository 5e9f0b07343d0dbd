// SPDX-License-Identifier: Apache-2.0
#include "unit/kernels/attention_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <map>
#include <numeric>

namespace cadenza::testing {
namespace {

Vector normal(std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> value;
  Vector numbers(count);
  for (double& number : numbers) number = value(random);
  return numbers;
}

/// Cuts [0, size) into up to four parts.
std::vector<Range> random_cuts(Range whole, bool cut, std::mt19937_64& random) {
  std::vector<std::int64_t> ends = {whole.begin, whole.end};
  if (cut && whole.size() > 1) {
    for (int n = static_cast<int>(random() % 4); n > 0; --n) {
      ends.push_back(whole.begin + static_cast<std::int64_t>(
                                       random() % static_cast<std::uint64_t>(whole.size())));
    }
  }
  std::sort(ends.begin(), ends.end());
  std::vector<Range> parts;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (ends[i - 1] < ends[i]) parts.push_back({ends[i - 1], ends[i]});
  }
  return parts;
}

Storage random_storage(const CaseOptions& options, std::mt19937_64& random) {
  Storage made;
  made.query_slices = random_cuts({0, options.shape.heads}, options.sliced, random);
  made.key_slices = random_cuts({0, options.shape.kv_heads}, options.sliced, random);
  if (!options.striped) return made;
  made.query_token = static_cast<std::int64_t>(random() % 500) - 250;
  made.key_token = static_cast<std::int64_t>(random() % 500) - 250;
  made.positions.first = static_cast<std::int64_t>(random() % 40);
  made.positions.step = 1 + static_cast<std::int64_t>(random() % 4);
  return made;
}

/// Parts of `heads` of which each is in one slice of both sides.
std::vector<Range> cut_at_slices(const Range& heads, const Storage& storage, int group) {
  std::vector<Range> parts;
  for (const Range& slice : storage.query_slices) {
    for (const Range& read : storage.key_slices) {
      const Range part = intersect(intersect(heads, slice), {read.begin * group, read.end * group});
      if (!part.empty()) parts.push_back(part);
    }
  }
  return parts;
}

/// One of a few, so that tasks share some; it takes `position` and those behind it into a table.
PositionMap random_map(std::int64_t position, std::mt19937_64& random) {
  const std::int64_t first = static_cast<std::int64_t>(random() % 3) * 20 - 20;
  switch (random() % 4) {
    case 0:
      return {std::max(first, -position), 1, PositionMap::kNoCap};
    case 1:
      return {std::max(first, -position), 1, 60};
    case 2:
      return {17, 0, PositionMap::kNoCap};
    default:
      return {3, 2, 70};
  }
}

/// Adds the parts of a task that its document's storage makes of it.
void add_task(Case& made, const CaseOptions& options, const Piece& piece, std::mt19937_64& random) {
  const auto document = static_cast<std::size_t>(piece.task.document);
  const Storage& storage = made.documents[document].storage;
  for (const Range& heads : cut_at_slices(piece.task.heads, storage, options.shape.group())) {
    Piece part = piece;
    part.task.heads = heads;
    if (options.striped) {
      const auto reach = static_cast<std::uint64_t>(made.documents[document].length) + 20;
      part.task.band.high =
          static_cast<std::int64_t>(random() % (2 * reach)) - static_cast<std::int64_t>(reach);
    }
    if (options.window_share > 0 &&
        std::uniform_real_distribution<double>(0, 1)(random) < options.window_share) {
      // A few keys, or so many that the edge crosses several tiles.
      const std::uint64_t most = random() % 2 == 0 ? 8 : 300;
      const std::int64_t high = std::min<std::int64_t>(part.task.band.high, 40);
      part.task.band = {high - static_cast<std::int64_t>(random() % most), high};
    }
    if (options.mapped_share > 0 &&
        std::uniform_real_distribution<double>(0, 1)(random) < options.mapped_share) {
      part.task.q_positions = random_map(position_of(storage, part.task.q.begin), random);
    }
    made.pieces.push_back(part);
  }
}

void add_pieces(Case& made, int document, const CaseOptions& options, std::mt19937_64& random) {
  const Range whole{0, options.lengths[static_cast<std::size_t>(document)]};
  std::uniform_real_distribution<double> share(0, 1);
  const auto key_buffers = random_cuts(whole, options.cut, random);
  for (const Range& query_buffer : random_cuts(whole, options.cut, random)) {
    for (const Range& q : random_cuts(query_buffer, options.cut, random)) {
      for (const Range& key_buffer : key_buffers) {
        for (const Range& k : random_cuts(key_buffer, options.cut, random)) {
          for (const Range& heads : random_cuts({0, options.shape.heads}, options.cut, random)) {
            const Band band = share(random) < options.full_share ? Band::full() : Band::causal();
            if (share(random) < options.dropped_share) continue;
            add_task(made, options, {{document, q, k, heads, band}, query_buffer, key_buffer},
                     random);
          }
        }
      }
    }
  }
}

/// A row of one head turned by the angles position * theta^(-2d / D), as complex numbers.
Vector rotated(const double* row, int dim, double theta, double position) {
  Vector x(row, row + dim);
  const auto half = static_cast<std::size_t>(dim / 2);
  for (std::size_t d = 0; theta != 0 && d < half; ++d) {
    const std::complex<double> turned =
        std::complex<double>(x[d], x[d + half]) *
        std::polar(1.0, position * std::pow(theta, -2.0 * static_cast<double>(d) / dim));
    x[d] = turned.real();
    x[d + half] = turned.imag();
  }
  return x;
}

double dot(const double* a, const double* b, int dim) {
  return std::inner_product(a, a + dim, b, 0.0);
}

/// For one query and head: the map of its position against key j; null: it does not see the key.
std::vector<const PositionMap*> seen_keys(const Case& of, int document, std::int64_t query,
                                          int head) {
  std::vector<const PositionMap*> seen(
      static_cast<std::size_t>(of.documents[static_cast<std::size_t>(document)].length));
  for (const Piece& piece : of.pieces) {
    const Task& task = piece.task;
    if (task.document != document || !task.q.contains({query, query + 1}) ||
        !task.heads.contains({head, head + 1})) {
      continue;
    }
    for (std::int64_t j = task.k.begin; j < task.k.end; ++j) {
      const bool allowed = task.band.sees(query, j);
      if (allowed) seen[static_cast<std::size_t>(j)] = &task.q_positions;
    }
  }
  return seen;
}

/// A query at one position, and the gradient of it there.
struct Turned {
  double position = 0;
  Vector q;
  Vector dq;
};

/// One query of one head by definition.
void reference_row(const Case& of, int document, std::int64_t query, int head,
                   DocumentResult& result) {
  const DocumentData& data = of.documents[static_cast<std::size_t>(document)];
  const int dim = of.shape.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const std::vector<const PositionMap*> seen = seen_keys(of, document, query, head);
  const auto q_at = static_cast<std::size_t>((query * of.shape.heads + head) * dim);
  const auto kv_at = [&](std::size_t j) {
    return (j * static_cast<std::size_t>(of.shape.kv_heads) +
            static_cast<std::size_t>(head / of.shape.group())) *
           static_cast<std::size_t>(dim);
  };
  std::map<PositionMap, Turned> at_map;
  for (const PositionMap* map : seen) {
    if (map == nullptr || at_map.contains(*map)) continue;
    const auto position = static_cast<double>(map->of(position_of(data.storage, query)));
    at_map[*map] = {position, rotated(&data.q[q_at], dim, of.theta, position),
                    Vector(static_cast<std::size_t>(dim))};
  }
  Vector logits(seen.size(), -kInfinity);
  for (std::size_t j = 0; j < seen.size(); ++j) {
    if (seen[j] == nullptr) continue;
    logits[j] = scale * dot(at_map[*seen[j]].q.data(), &data.k[kv_at(j)], dim);
  }
  const double peak = *std::max_element(logits.begin(), logits.end());
  if (peak == -kInfinity) return;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - peak);
  double* out = &result.out[q_at];
  for (std::size_t j = 0; j < seen.size(); ++j) {
    const double p = std::exp(logits[j] - peak) / sum;
    for (int d = 0; d < dim && seen[j] != nullptr; ++d)
      out[d] += p * data.v[kv_at(j) + static_cast<std::size_t>(d)];
  }
  result.lse[static_cast<std::size_t>(query * of.shape.heads + head)] = peak + std::log(sum);
  const double* dout = &data.dout[q_at];
  const double delta = dot(out, dout, dim);
  for (std::size_t j = 0; j < seen.size(); ++j) {
    if (seen[j] == nullptr) continue;
    Turned& turned = at_map[*seen[j]];
    const double p = std::exp(logits[j] - peak) / sum;
    const double ds = scale * p * (dot(dout, &data.v[kv_at(j)], dim) - delta);
    for (int d = 0; d < dim; ++d) {
      const auto e = static_cast<std::size_t>(d);
      result.dv[kv_at(j) + e] += p * dout[d];
      turned.dq[e] += ds * data.k[kv_at(j) + e];
      result.dk[kv_at(j) + e] += ds * turned.q[e];
    }
  }
  for (const auto& [map, turned] : at_map) {
    const Vector back = rotated(turned.dq.data(), dim, of.theta, -turned.position);
    for (std::size_t e = 0; e < back.size(); ++e) result.dq[q_at + e] += back[e];
  }
}

}  // namespace

std::int64_t position_of(const Storage& storage, std::int64_t row) {
  const std::int64_t first =
      storage.positions.first < 0 ? storage.query_token : storage.positions.first;
  return first + row * storage.positions.step;
}

Case make_case(const CaseOptions& options, std::mt19937_64& random) {
  Case made;
  made.shape = options.shape;
  made.theta = options.theta;
  const auto q_row = static_cast<std::size_t>(options.shape.heads * options.shape.head_dim);
  const auto kv_row = static_cast<std::size_t>(options.shape.kv_heads * options.shape.head_dim);
  for (std::size_t d = 0; d < options.lengths.size(); ++d) {
    const auto length = static_cast<std::size_t>(options.lengths[d]);
    DocumentData data;
    data.length = options.lengths[d];
    data.q = normal(length * q_row, random);
    data.k = normal(length * kv_row, random);
    data.v = normal(length * kv_row, random);
    data.dout = normal(length * q_row, random);
    data.storage = random_storage(options, random);
    made.documents.push_back(std::move(data));
    add_pieces(made, static_cast<int>(d), options, random);
  }
  std::shuffle(made.pieces.begin(), made.pieces.end(), random);
  return made;
}

std::vector<DocumentResult> reference(const Case& of) {
  std::vector<DocumentResult> results;
  for (std::size_t n = 0; n < of.documents.size(); ++n) {
    const DocumentData& data = of.documents[n];
    DocumentResult result;
    result.out.resize(data.q.size());
    result.dq.resize(data.q.size());
    result.dk.resize(data.k.size());
    result.dv.resize(data.k.size());
    result.lse.assign(data.q.size() / static_cast<std::size_t>(of.shape.head_dim), -kInfinity);
    for (std::int64_t i = 0; i < data.length; ++i) {
      for (int h = 0; h < of.shape.heads; ++h) reference_row(of, static_cast<int>(n), i, h, result);
    }
    results.push_back(std::move(result));
  }
  return results;
}

void round_to_bfloat16(Case& of) {
  for (DocumentData& data : of.documents) {
    for (Vector* tensor : {&data.q, &data.k, &data.v, &data.dout}) {
      for (double& x : *tensor) {
        x = static_cast<double>(static_cast<float>(bfloat16(x)));
      }
    }
  }
}

Case rounded_case(const CaseOptions& options, std::mt19937_64& random) {
  Case of = make_case(options, random);
  round_to_bfloat16(of);
  return of;
}

double max_difference(const Vector& a, const Vector& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::abs(a[i] - b[i]);
    largest = std::max(largest, std::isnan(difference) ? kInfinity : difference);
  }
  return largest;
}

double relative_difference(const Vector& a, const Vector& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  const double relative = std::sqrt(norm > 0 ? error / norm : error);
  return std::isnan(relative) ? kInfinity : relative;
}

void expect_close(const std::vector<DocumentResult>& got,
                  const std::vector<DocumentResult>& expected, double forward, double backward) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t d = 0; d < got.size(); ++d) {
    SCOPED_TRACE("document " + std::to_string(d));
    EXPECT_LE(max_difference(got[d].out, expected[d].out), forward) << "out";
    EXPECT_LE(max_difference(got[d].lse, expected[d].lse), forward) << "lse";
    EXPECT_LE(relative_difference(got[d].dq, expected[d].dq), backward) << "dq";
    EXPECT_LE(relative_difference(got[d].dk, expected[d].dk), backward) << "dk";
    EXPECT_LE(relative_difference(got[d].dv, expected[d].dv), backward) << "dv";
  }
}

}  // namespace cadenza::testing
