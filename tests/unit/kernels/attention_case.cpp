// SPDX-License-Identifier: Apache-2.0
#include "unit/kernels/attention_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "unit/kernels/device_data.hpp"

namespace cadenza::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

const Range& slice_with(const std::vector<Range>& slices, std::int64_t head) {
  return *std::find_if(slices.begin(), slices.end(), [&](const Range& slice) {
    return slice.contains({head, head + 1});
  });
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

/// Adds the parts of a task that its document's storage makes of it.
void add_task(Case& made, const CaseOptions& options, const Piece& piece, std::mt19937_64& random) {
  const auto document = static_cast<std::size_t>(piece.task.document);
  const Storage& storage = made.documents[document].storage;
  for (const Range& heads : cut_at_slices(piece.task.heads, storage, options.shape.group())) {
    Piece part = piece;
    part.task.heads = heads;
    if (options.striped) {
      const auto reach = static_cast<std::uint64_t>(made.documents[document].length) + 20;
      part.task.diagonal =
          static_cast<std::int64_t>(random() % (2 * reach)) - static_cast<std::int64_t>(reach);
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
            const Rule rule = share(random) < options.full_share ? Rule::full : Rule::causal;
            if (share(random) < options.dropped_share) continue;
            add_task(made, options, {{document, q, k, heads, rule}, query_buffer, key_buffer},
                     random);
          }
        }
      }
    }
  }
}

/// Document position of a row of queries.
std::int64_t position_of(const Storage& storage, std::int64_t row) {
  const std::int64_t first =
      storage.positions.first < 0 ? storage.query_token : storage.positions.first;
  return first + row * storage.positions.step;
}

/// Rotates [rows, heads, D] by angle(row) = sign * position * theta^(-2d / D), as complex numbers.
void rotate(Vector& x, int heads, int dim, double theta, double sign, const Storage& storage) {
  if (theta == 0) return;
  const std::size_t row_size = static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim);
  const int half = dim / 2;
  for (std::size_t at = 0; at < x.size(); at += static_cast<std::size_t>(dim)) {
    const auto position =
        static_cast<double>(position_of(storage, static_cast<std::int64_t>(at / row_size)));
    for (int d = 0; d < half; ++d) {
      const std::size_t low = at + static_cast<std::size_t>(d);
      const std::size_t high = low + static_cast<std::size_t>(half);
      const std::complex<double> turned =
          std::complex<double>(x[low], x[high]) *
          std::polar(1.0, sign * position * std::pow(theta, -2.0 * d / dim));
      x[low] = turned.real();
      x[high] = turned.imag();
    }
  }
}

double dot(const double* a, const double* b, int dim) {
  return std::inner_product(a, a + dim, b, 0.0);
}

/// seen[j] for one query and head.
std::vector<bool> seen_keys(const Case& of, int document, std::int64_t query, int head) {
  std::vector<bool> seen(
      static_cast<std::size_t>(of.documents[static_cast<std::size_t>(document)].length));
  for (const Piece& piece : of.pieces) {
    const Task& task = piece.task;
    if (task.document != document || !task.q.contains({query, query + 1}) ||
        !task.heads.contains({head, head + 1})) {
      continue;
    }
    for (std::int64_t j = task.k.begin; j < task.k.end; ++j) {
      const bool allowed = task.rule == Rule::full || j <= query + task.diagonal;
      if (allowed) seen[static_cast<std::size_t>(j)] = true;
    }
  }
  return seen;
}

/// One query of one head by definition; `q` is rotated, dq is the gradient of the rotated q.
void reference_row(const Case& of, int document, std::int64_t query, int head, const Vector& q,
                   DocumentResult& result) {
  const DocumentData& data = of.documents[static_cast<std::size_t>(document)];
  const int dim = of.shape.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const std::vector<bool> seen = seen_keys(of, document, query, head);
  const auto q_at = static_cast<std::size_t>((query * of.shape.heads + head) * dim);
  const auto kv_at = [&](std::size_t j) {
    return (j * static_cast<std::size_t>(of.shape.kv_heads) +
            static_cast<std::size_t>(head / of.shape.group())) *
           static_cast<std::size_t>(dim);
  };
  Vector logits(seen.size(), -kInfinity);
  for (std::size_t j = 0; j < seen.size(); ++j) {
    if (seen[j]) logits[j] = scale * dot(&q[q_at], &data.k[kv_at(j)], dim);
  }
  const double peak = *std::max_element(logits.begin(), logits.end());
  if (peak == -kInfinity) return;
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - peak);
  double* out = &result.out[q_at];
  for (std::size_t j = 0; j < seen.size(); ++j) {
    const double p = std::exp(logits[j] - peak) / sum;
    for (int d = 0; d < dim && seen[j]; ++d)
      out[d] += p * data.v[kv_at(j) + static_cast<std::size_t>(d)];
  }
  result.lse[static_cast<std::size_t>(query * of.shape.heads + head)] = peak + std::log(sum);
  const double* dout = &data.dout[q_at];
  const double delta = dot(out, dout, dim);
  for (std::size_t j = 0; j < seen.size(); ++j) {
    if (!seen[j]) continue;
    const double p = std::exp(logits[j] - peak) / sum;
    const double ds = scale * p * (dot(dout, &data.v[kv_at(j)], dim) - delta);
    for (int d = 0; d < dim; ++d) {
      const auto e = static_cast<std::size_t>(d);
      result.dv[kv_at(j) + e] += p * dout[d];
      result.dq[q_at + e] += ds * data.k[kv_at(j) + e];
      result.dk[kv_at(j) + e] += ds * q[q_at + e];
    }
  }
}

template <typename Real>
std::vector<Real> stored(const Vector& values) {
  std::vector<Real> result;
  for (const double value : values) result.push_back(Real(static_cast<Accumulator<Real>>(value)));
  return result;
}

enum class Way { into_slices, out_of_slices };

/// Rows of all heads [length, heads, width] to [length, heads of the slice, width] for one slice
/// after another, or back. `slices` cover the heads.
template <typename T>
std::vector<T> moved(const std::vector<T>& from, const std::vector<Range>& slices,
                     std::int64_t length, std::int64_t width, Way way) {
  std::vector<T> to(from.size());
  const std::int64_t heads = slices.empty() ? 0 : slices.back().end;
  std::size_t at = 0;  // in slices
  for (const Range& slice : slices) {
    for (std::int64_t row = 0; row < length; ++row) {
      for (std::int64_t e = slice.begin * width; e < slice.end * width; ++e, ++at) {
        const auto whole = static_cast<std::size_t>(row * heads * width + e);
        if (way == Way::into_slices) {
          to[at] = from[whole];
        } else {
          to[whole] = from[at];
        }
      }
    }
  }
  return to;
}

/// One document's tensors on the device, by slices.
template <typename Real>
struct DeviceDocument {
  Array<Real> q, k, v, dout;
  Array<Accumulator<Real>> out, lse, delta, dq, dk, dv;

  DeviceDocument(const DocumentData& data, int dim)
      : q(placed(data.q, data.storage.query_slices, data.length, dim)),
        k(placed(data.k, data.storage.key_slices, data.length, dim)),
        v(placed(data.v, data.storage.key_slices, data.length, dim)),
        dout(placed(data.dout, data.storage.query_slices, data.length, dim)),
        out("out", q.extent(0)),
        dq("dq", q.extent(0)),
        dk("dk", k.extent(0)),
        dv("dv", k.extent(0)) {}

  static Array<Real> placed(const Vector& values, const std::vector<Range>& slices,
                            std::int64_t length, int dim) {
    return upload(moved(stored<Real>(values), slices, length, dim, Way::into_slices));
  }

  DocumentResult result(const DocumentData& data, int dim) const {
    const Storage& storage = data.storage;
    const auto whole = [&](const Array<Accumulator<Real>>& from, const std::vector<Range>& slices,
                           int width) {
      return convert<double>(moved(download(from), slices, data.length, width, Way::out_of_slices));
    };
    return {whole(out, storage.query_slices, dim), whole(lse, storage.query_slices, 1),
            whole(dq, storage.query_slices, dim), whole(dk, storage.key_slices, dim),
            whole(dv, storage.key_slices, dim)};
  }
};

template <typename Real>
class ListBuilder {
 public:
  ListBuilder(const Case& of, std::vector<DeviceDocument<Real>>& documents)
      : of_(of), documents_(documents) {}

  void add(const Piece& piece) {
    const int document = piece.task.document;
    const Storage& storage = of_.documents[static_cast<std::size_t>(document)].storage;
    const std::int64_t head = piece.task.heads.begin;
    const Range slice = slice_with(storage.query_slices, head);
    const Range kv_slice = slice_with(storage.key_slices, head / of_.shape.group());
    const auto [query, new_query] = query_index_.try_emplace(
        {document, piece.query_buffer.begin, slice.begin}, static_cast<int>(list_.queries.size()));
    if (new_query) add_queries(document, piece.query_buffer, slice);
    const auto [key, new_key] = key_index_.try_emplace(
        {document, piece.key_buffer.begin, kv_slice.begin}, static_cast<int>(list_.keys.size()));
    if (new_key) add_keys(document, piece.key_buffer, kv_slice);
    list_.tasks.push_back({piece.task, query->second, key->second});
    Task& task = list_.tasks.back().task;
    task.q = moved(task.q, storage.query_token);
    task.k = moved(task.k, storage.key_token);
    task.diagonal += storage.key_token - storage.query_token;
  }
  const kernels::TaskList<Real>& list() const { return list_; }

 private:
  static Range moved(const Range& rows, std::int64_t by) {
    return {rows.begin + by, rows.end + by};
  }

  void add_queries(int document, const Range& rows, const Range& slice) {
    const DocumentData& data = of_.documents[static_cast<std::size_t>(document)];
    auto& on_device = documents_[static_cast<std::size_t>(document)];
    const auto heads = data.length * slice.begin + rows.begin * slice.size();
    const auto at = heads * of_.shape.head_dim;
    kernels::QueryRows<Real> made{moved(rows, data.storage.query_token),
                                  on_device.q.data() + at,
                                  on_device.out.data() + at,
                                  on_device.lse.data() + heads,
                                  on_device.dout.data() + at,
                                  on_device.delta.data() + heads,
                                  on_device.dq.data() + at};
    if (slice.size() < of_.shape.heads) made.heads = slice;
    made.positions = data.storage.positions;
    if (made.positions.first >= 0) made.positions.first += rows.begin * made.positions.step;
    list_.queries.push_back(made);
  }

  void add_keys(int document, const Range& rows, const Range& slice) {
    const DocumentData& data = of_.documents[static_cast<std::size_t>(document)];
    auto& on_device = documents_[static_cast<std::size_t>(document)];
    const auto at = (data.length * slice.begin + rows.begin * slice.size()) * of_.shape.head_dim;
    kernels::KeyRows<Real> made{moved(rows, data.storage.key_token), on_device.k.data() + at,
                                on_device.v.data() + at, on_device.dk.data() + at,
                                on_device.dv.data() + at};
    if (slice.size() < of_.shape.kv_heads) made.heads = slice;
    list_.keys.push_back(made);
  }

  const Case& of_;
  std::vector<DeviceDocument<Real>>& documents_;
  kernels::TaskList<Real> list_;
  /// Document, first row, first head.
  std::map<std::tuple<int, std::int64_t, std::int64_t>, int> query_index_, key_index_;
};

template <typename Real>
std::vector<ListBuilder<Real>> make_lists(const Case& of,
                                          std::vector<DeviceDocument<Real>>& documents, int calls) {
  std::vector<ListBuilder<Real>> lists(static_cast<std::size_t>(calls), {of, documents});
  for (std::size_t p = 0; p < of.pieces.size(); ++p) lists[p % lists.size()].add(of.pieces[p]);
  return lists;
}

template <typename Real>
Array<Accumulator<Real>> row_sums(const Array<Accumulator<Real>>& a, const Array<Real>& b,
                                  int dim) {
  using Sum = Accumulator<Real>;
  const auto x = download(a);
  const auto y = download(b);
  std::vector<Sum> sums(x.size() / static_cast<std::size_t>(dim));
  for (std::size_t i = 0; i < x.size(); ++i) {
    sums[i / static_cast<std::size_t>(dim)] += x[i] * static_cast<Sum>(y[i]);
  }
  return upload(sums);
}

}  // namespace

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
    Vector q = data.q;
    rotate(q, of.shape.heads, of.shape.head_dim, of.theta, 1, data.storage);
    for (std::int64_t i = 0; i < data.length; ++i) {
      for (int h = 0; h < of.shape.heads; ++h)
        reference_row(of, static_cast<int>(n), i, h, q, result);
    }
    rotate(result.dq, of.shape.heads, of.shape.head_dim, of.theta, -1, data.storage);
    results.push_back(std::move(result));
  }
  return results;
}

template <typename Real>
kernels::RotaryTable<Real> rotary_table(const Case& of) {
  std::int64_t longest = 0;
  for (const DocumentData& data : of.documents) {
    longest = std::max(longest, position_of(data.storage, data.length - 1) + 1);
  }
  const int half = of.shape.head_dim / 2;
  if (of.theta == 0) return {};
  std::vector<Real> cos, sin;
  for (std::int64_t p = 0; p < longest; ++p) {
    for (int d = 0; d < half; ++d) {
      const double angle =
          static_cast<double>(p) * std::pow(of.theta, -2.0 * d / of.shape.head_dim);
      cos.push_back(static_cast<Real>(std::cos(angle)));
      sin.push_back(static_cast<Real>(std::sin(angle)));
    }
  }
  return {upload(cos), upload(sin), half};
}

template kernels::RotaryTable<double> rotary_table<double>(const Case&);

template <typename Real>
std::vector<DocumentResult> computed(const Case& of, int calls, const Kernels<Real>& by) {
  using Sum = Accumulator<Real>;
  std::vector<DeviceDocument<Real>> documents;
  for (const DocumentData& data : of.documents) {
    auto& document = documents.emplace_back(data, of.shape.head_dim);
    const auto rows = document.q.extent(0) / static_cast<std::size_t>(of.shape.head_dim);
    document.lse = upload(std::vector<Sum>(rows, -std::numeric_limits<Sum>::infinity()));
  }
  const auto rotary = rotary_table<Sum>(of);
  for (const auto& list : make_lists(of, documents, calls)) {
    by.forward(of.shape, rotary, list.list());
  }
  for (auto& document : documents) {
    document.delta = row_sums<Real>(document.out, document.dout, of.shape.head_dim);
  }
  for (const auto& list : make_lists(of, documents, calls)) {
    by.backward(of.shape, rotary, list.list());
  }
  Kokkos::fence();
  std::vector<DocumentResult> results;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    results.push_back(documents[d].result(of.documents[d], of.shape.head_dim));
  }
  return results;
}

template std::vector<DocumentResult> computed<float>(const Case&, int, const Kernels<float>&);
template std::vector<DocumentResult> computed<double>(const Case&, int, const Kernels<double>&);
template std::vector<DocumentResult> computed<bfloat16>(const Case&, int, const Kernels<bfloat16>&);

void round_to_bfloat16(Case& of) {
  for (DocumentData& data : of.documents) {
    for (Vector* tensor : {&data.q, &data.k, &data.v, &data.dout}) {
      for (double& x : *tensor) {
        x = static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(x))));
      }
    }
  }
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
