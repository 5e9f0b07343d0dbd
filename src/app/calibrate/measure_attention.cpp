// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate/measure_attention.hpp"

#include <algorithm>
#include <vector>

#include "app/calibrate/measure.hpp"
#include "cadenza/base/sparse_index.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::app {
namespace {

void make_progress(void* world) {
  static_cast<comm::Communicator*>(world)->progress();
}

}  // namespace

SparsePattern pattern_of(const AttentionCase& work) {
  // Each makes two blocks of a row active, out of the half of a row's blocks that are causal on
  // average.
  const std::int64_t count = std::max<std::int64_t>(1, work.keys / 32 / work.block);
  std::vector<std::int64_t> slashes, columns;
  if (work.adjoining) {
    for (std::int64_t i = 0; i < 2 * count; ++i) slashes.push_back(i * work.block);
    for (std::int64_t key = 0; key < work.keys / 128; ++key) columns.push_back(key);
    return SparsePattern::vertical_slash(work.keys, work.block, slashes, columns);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(count);
    slashes.push_back(static_cast<std::int64_t>(share * share * static_cast<double>(work.keys)));
  }
  for (std::int64_t key = 0; key < work.keys; key += 128) columns.push_back(key);
  return SparsePattern::vertical_slash(work.keys, work.block, slashes, columns);
}

template <typename Real>
AttentionMeasurement<Real>::AttentionMeasurement(comm::Communicator& world,
                                                 const config::Experiment& experiment,
                                                 std::int64_t tokens, MemoryLedger& ledger)
    : world_(world),
      shape_(config::attention_shape(experiment.model)),
      kernel_(experiment.attention.kernel),
      rotary_(attention::make_rotary_table<Sum>(
          ledger, tokens, model::rotary_frequencies(experiment.model.rope, shape_.head_dim))) {
  const auto make = [&]<typename T>(Array<T>& array, int heads, int width, T value) {
    array = allocate<T>(ledger, MemoryKind::attention, "calibration", tokens * heads * width);
    Kokkos::deep_copy(array, value);
  };
  const int heads = shape_.heads, key_heads = shape_.kv_heads, width = shape_.head_dim;
  const auto value = static_cast<Real>(0.1f);
  make(q_, heads, width, value);
  make(k_, key_heads, width, value);
  make(v_, key_heads, width, value);
  make(dout_, heads, width, value);
  make(out_, heads, width, Sum(0));
  make(lse_, heads, 1, Sum(0));
  make(delta_, heads, 1, Sum(0));
  make(dq_, heads, width, Sum(0));
  make(dk_, key_heads, width, Sum(0));
  make(dv_, key_heads, width, Sum(0));
}

template <typename Real>
kernels::TaskList<Real> AttentionMeasurement<Real>::list(const AttentionCase& work) const {
  kernels::TaskList<Real> list;
  list.kernel = kernel_;
  list.progress = {make_progress, &world_};
  const std::int64_t query = static_cast<std::int64_t>(shape_.heads) * shape_.head_dim;
  const std::int64_t key = static_cast<std::int64_t>(shape_.kv_heads) * shape_.head_dim;
  for (int document = 0; document < work.count; ++document) {
    const Range all{0, work.keys};
    const Range last{work.keys - work.queries, work.keys};
    const std::int64_t row = document * work.keys;
    const std::int64_t first = (row + last.begin) * query;
    const std::int64_t statistic = (row + last.begin) * shape_.heads;
    list.queries.push_back({last, q_.data() + first, out_.data() + first, lse_.data() + statistic,
                            dout_.data() + first, delta_.data() + statistic, dq_.data() + first});
    list.keys.push_back({all, k_.data() + row * key, v_.data() + row * key, dk_.data() + row * key,
                         dv_.data() + row * key});
    list.tasks.push_back({{document, last, all, {0, shape_.heads}, work.band}, document, document});
  }
  return list;
}

template <typename Real>
double AttentionMeasurement<Real>::seconds(const AttentionCase& work, program::Pass pass) {
  kernels::TaskList<Real> tasks = list(work);
  SparseIndex index;
  if (work.block > 0) {
    const auto patterns = static_cast<std::size_t>(work.count * shape_.heads);
    index = SparseIndex(shape_.heads, std::vector(patterns, pattern_of(work)));
    tasks.index = &index;
  }
  return measure(world_, [&] {
    if (pass == program::Pass::forward) {
      kernels::attention_forward(shape_, rotary_, tasks);
    } else {
      kernels::attention_backward(shape_, rotary_, tasks);
    }
  });
}

template class AttentionMeasurement<bfloat16>;
template class AttentionMeasurement<float>;
template class AttentionMeasurement<double>;

}  // namespace cadenza::app
