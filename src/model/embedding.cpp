// SPDX-License-Identifier: Apache-2.0
// The embedding. Many rows share a token, so gradients are added token by token: tokens run in
// parallel, and no element has two writers.
#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/model/layers.hpp"
#include "model/vector_loops.hpp"

namespace cadenza::model {
namespace {

/// Columns of a token that one thread adds: one on a device; on the host its share of them, in
/// whole cache lines.
std::int64_t columns_per_item(std::int64_t width) {
  if (kDeviceIsCuda) return 1;
  const std::int64_t share = (width + Device().concurrency() - 1) / Device().concurrency();
  return (share + 15) / 16 * 16;
}

/// Adds the gradients of some columns of one token.
template <typename In>
struct EmbedGradient {
  using Sum = Accumulator<In>;
  const In* dx;
  TokenRuns runs;
  Range rows;
  Range vocab;
  std::int64_t width;
  std::int64_t columns;  ///< columns of an item
  std::int64_t items;    ///< items of a token
  Sum* dtable;

  /// On a device, neighbouring items are columns of one token and read a row together. On the host
  /// they are tokens: a thread keeps its columns, whatever the tokens are.
  KOKKOS_FUNCTION void operator()(const std::int64_t item) const {
    if constexpr (kDeviceIsCuda) {
      add_column(item / items, item % items);
    } else {
      add_columns(item % runs.count, item / runs.count * columns);
    }
  }

  KOKKOS_FUNCTION void add_column(std::int64_t run, std::int64_t c) const {
    Sum* to = row_of_table(run) + c;
    Sum sum = *to;  // in a register, so that rows can be read before earlier ones are added
    for_each_row(run, [&](const In* from) { sum += widen(from[c]); });
    *to = sum;
  }

  KOKKOS_FUNCTION void add_columns(std::int64_t run, std::int64_t first) const {
    const std::int64_t last = first + columns < width ? first + columns : width;
    Sum* to = row_of_table(run);
    for_each_row(run, [=](const In* from) {
      CADENZA_SIMD()
      for (std::int64_t c = first; c < last; ++c) to[c] += widen(from[c]);
    });
  }

  KOKKOS_FUNCTION Sum* row_of_table(std::int64_t run) const {
    return dtable + (runs.tokens[run] - vocab.begin) * width;
  }

  template <typename F>
  KOKKOS_FUNCTION void for_each_row(std::int64_t run, const F& f) const {
    for (std::int64_t at = runs.begins[run]; at < runs.begins[run + 1]; ++at) {
      const std::int64_t row = runs.rows[at];
      if (row >= rows.begin && row < rows.end) f(dx + (row - rows.begin) * width);
    }
  }
};

}  // namespace

RowsByToken rows_by_token(std::span<const std::int32_t> tokens, Range vocab) {
  const auto token_of = [&](std::int32_t row) { return tokens[at(row)]; };
  RowsByToken sorted;
  for (std::int32_t row = 0; row < std::ssize(tokens); ++row) {
    if (vocab.contains({token_of(row), token_of(row) + 1})) sorted.rows.push_back(row);
  }
  std::ranges::stable_sort(sorted.rows, {}, token_of);
  for (std::size_t at = 0; at < sorted.rows.size(); ++at) {
    const std::int32_t token = token_of(sorted.rows[at]);
    if (!sorted.tokens.empty() && sorted.tokens.back() == token) continue;
    sorted.tokens.push_back(token);
    sorted.begins.push_back(static_cast<std::int32_t>(at));
  }
  sorted.begins.push_back(static_cast<std::int32_t>(sorted.rows.size()));
  return sorted;
}

template <typename Real, typename Out>
void embed(const Real* table, Range vocab, const std::int32_t* tokens, std::int64_t rows,
           std::int64_t width, Out* x) {
  for_rows(
      "embed", rows, KOKKOS_LAMBDA(const Team& team, const std::int64_t row) {
        const std::int64_t token = tokens[row];
        Out* to = x + row * width;
        if (token < vocab.begin || token >= vocab.end) {
          for_columns(team, width, [=](const std::int64_t c) { narrow(0, to[c]); });
          return;
        }
        const Real* from = table + (token - vocab.begin) * width;
        for_columns(team, width, [=](const std::int64_t c) { narrow(widen(from[c]), to[c]); });
      });
}

template <typename In>
void embed_gradient(const In* dx, const TokenRuns& runs, Range rows, Range vocab,
                    std::int64_t width, Accumulator<In>* dtable) {
  const std::int64_t columns = columns_per_item(width);
  const std::int64_t items = (width + columns - 1) / columns;
  launch("embed_gradient",
         Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0, runs.count * items),
         EmbedGradient<In>{dx, runs, rows, vocab, width, columns, items, dtable});
}

#define CADENZA_INSTANTIATE(Real, Out) \
  template void embed(const Real*, Range, const std::int32_t*, std::int64_t, std::int64_t, Out*);
CADENZA_INSTANTIATE(float, float)
CADENZA_INSTANTIATE(double, double)
CADENZA_INSTANTIATE(bfloat16, float)
CADENZA_INSTANTIATE(bfloat16, bfloat16)
#undef CADENZA_INSTANTIATE

#define CADENZA_INSTANTIATE(In)                                                         \
  template void embed_gradient(const In*, const TokenRuns&, Range, Range, std::int64_t, \
                               Accumulator<In>*);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
