// SPDX-License-Identifier: Apache-2.0
// Cases as task lists on the device, and what kernels make of them.
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "unit/kernels/attention_case.hpp"
#include "unit/kernels/device_data.hpp"

namespace cadenza::testing {
namespace {

const Range& slice_with(const std::vector<Range>& slices, std::int64_t head) {
  return *std::find_if(slices.begin(), slices.end(), [&](const Range& slice) {
    return slice.contains({head, head + 1});
  });
}

template <typename Real>
std::vector<Real> stored(const Vector& values) {
  std::vector<Real> result;
  for (const double value : values) result.push_back(static_cast<Real>(value));
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
      : of_(of), documents_(documents) {
    list_.kernel = of.kernel;
  }

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
    task.band = task.band.shifted(storage.key_token - storage.query_token);
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

template <typename Real>
kernels::RotaryTable<Real> rotary_table(const Case& of) {
  std::int64_t longest = 0;
  for (const DocumentData& data : of.documents) {
    longest = std::max(longest, position_of(data.storage, data.length - 1) + 1);
  }
  for (const Piece& piece : of.pieces) {
    const Storage& storage = of.documents[static_cast<std::size_t>(piece.task.document)].storage;
    const std::int64_t last = position_of(storage, piece.task.q.end - 1);
    longest = std::max(longest, piece.task.q_positions.of(last) + 1);
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
  fence();
  std::vector<DocumentResult> results;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    results.push_back(documents[d].result(of.documents[d], of.shape.head_dim));
  }
  return results;
}

template std::vector<DocumentResult> computed<float>(const Case&, int, const Kernels<float>&);
template std::vector<DocumentResult> computed<double>(const Case&, int, const Kernels<double>&);
template std::vector<DocumentResult> computed<bfloat16>(const Case&, int, const Kernels<bfloat16>&);

}  // namespace cadenza::testing
