// SPDX-License-Identifier: Apache-2.0
#include "gradients.hpp"

#include <algorithm>

namespace cadenza::exec {
namespace {

/// Elements [range) of a flat array.
template <typename View>
auto part(const View& view, Range range) {
  return Kokkos::subview(
      view, std::pair(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.end)));
}

template <typename T>
std::span<T> span_of(T* data, std::int64_t count) {
  return {data, static_cast<std::size_t>(count)};
}

}  // namespace

GradientShards::GradientShards(const model::ParameterTable& table, int ranks)
    : layers_(table.layers.size()) {
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    add(model::layer_elements(table, static_cast<int>(layer)), ranks);
  }
  for (const Range rest : model::remaining_elements(table)) add(rest, ranks);
}

void GradientShards::add(Range elements, int ranks) {
  Bucket& bucket = buckets_.emplace_back(Bucket{elements, {}});
  for (int rank = 0; rank < ranks; ++rank) {
    bucket.counts.push_back(elements.size() * (rank + 1) / ranks - elements.size() * rank / ranks);
  }
}

Range GradientShards::Bucket::of(int rank) const {
  const auto ranks = static_cast<std::int64_t>(counts.size());
  return {elements.begin + elements.size() * rank / ranks,
          elements.begin + elements.size() * (rank + 1) / ranks};
}

std::vector<Range> GradientShards::owned(int rank) const {
  std::vector<Range> ranges;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.of(rank).empty()) ranges.push_back(bucket.of(rank));
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

template <typename Real>
GradientReducer<Real>::GradientReducer(model::Parameters<Real>& parameters,
                                       comm::Communicator& replicas, bool shards, Tracer& tracer,
                                       MemoryLedger& ledger)
    : parameters_(parameters),
      replicas_(replicas),
      shards_(shards),
      tracer_(tracer),
      shares_(parameters.table, replicas.size()),
      gradients_(Kokkos::create_mirror_view(parameters.gradients)),
      posted_ns_(shares_.buckets().size(), 0) {
  if (!shards) return;
  values_ = Kokkos::create_mirror_view(parameters.values);
  for (const GradientShards::Bucket& bucket : shares_.buckets()) {
    const std::int64_t count = bucket.of(replicas.rank()).size();
    ledger.add(MemoryKind::gradients, count * static_cast<std::int64_t>(sizeof(Sum)));
    sums_.emplace_back("gradient_share", static_cast<std::size_t>(count));
  }
}

template <typename Real>
void GradientReducer<Real>::post_layer(int layer) {
  if (replicas_.size() > 1) post(static_cast<std::size_t>(layer));
}

template <typename Real>
void GradientReducer<Real>::post(std::size_t index) {
  const GradientShards::Bucket& bucket = shares_.buckets()[index];
  Kokkos::deep_copy(part(gradients_, bucket.elements),
                    part(parameters_.gradients, bucket.elements));
  const int channel = static_cast<int>(index);
  if (shards_) {
    replicas_.post_reduce_scatter(std::span<const Sum>(host(bucket.elements)), bucket.counts,
                                  span_of(sums_[index].data(), bucket.of(replicas_.rank()).size()),
                                  channel);
  } else {
    replicas_.post_all_reduce(host(bucket.elements), channel);
  }
  posted_ns_[index] = trace::now_ns();
}

template <typename Real>
void GradientReducer<Real>::complete(std::size_t index) {
  const GradientShards::Bucket& bucket = shares_.buckets()[index];
  replicas_.wait(static_cast<int>(index));
  if (shards_) {
    Kokkos::deep_copy(part(parameters_.gradients, bucket.of(replicas_.rank())), sums_[index]);
  } else {
    Kokkos::deep_copy(part(parameters_.gradients, bucket.elements),
                      part(gradients_, bucket.elements));
  }
  constexpr auto kKind = program::OtherEvent::reduce_gradients_message;
  tracer_.message(kKind, posted_ns_[index], trace::now_ns(),
                  {.bytes = bucket.elements.size() * static_cast<std::int64_t>(sizeof(Sum)),
                   .flow = tracer_.next_flow(replicas_, kKind)});
  posted_ns_[index] = 0;
}

template <typename Real>
void GradientReducer<Real>::finish() {
  if (replicas_.size() == 1) return;
  for (std::size_t bucket = 0; bucket < posted_ns_.size(); ++bucket) {
    if (posted_ns_[bucket] == 0) post(bucket);
  }
  for (std::size_t bucket = 0; bucket < posted_ns_.size(); ++bucket) complete(bucket);
}

template <typename Real>
void GradientReducer<Real>::gather_parameters() {
  if (replicas_.size() == 1) return;
  for (std::size_t index = 0; index < posted_ns_.size(); ++index) {
    const GradientShards::Bucket& bucket = shares_.buckets()[index];
    const Range mine = bucket.of(replicas_.rank());
    // Through the share's memory: a gather does not read what it writes.
    Kokkos::deep_copy(sums_[index], part(parameters_.values, mine));
    std::vector<std::int64_t> bytes = bucket.counts;
    for (std::int64_t& count : bytes) count *= static_cast<std::int64_t>(sizeof(Sum));
    replicas_.post_all_gather_v(
        std::as_bytes(span_of(sums_[index].data(), mine.size())), bytes,
        std::as_writable_bytes(
            span_of(values_.data() + bucket.elements.begin, bucket.elements.size())),
        static_cast<int>(index));
    replicas_.wait(static_cast<int>(index));
    Kokkos::deep_copy(part(parameters_.values, bucket.elements), part(values_, bucket.elements));
    model::round_working(parameters_, bucket.elements);
  }
}

template <typename Real>
std::vector<Accumulator<Real>> GradientReducer<Real>::gather_moment(const Array<Sum>& moment) {
  const auto owned = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, moment);
  std::vector<Sum> all(static_cast<std::size_t>(parameters_.table.elements));
  if (!shards_) {
    std::copy_n(owned.data(), all.size(), all.begin());
    return all;
  }
  for (std::size_t index = 0; index < posted_ns_.size(); ++index) {
    const GradientShards::Bucket& bucket = shares_.buckets()[index];
    const Range mine = bucket.of(replicas_.rank());
    std::int64_t at = 0;  // of this share among the owned elements
    for (const Range& range : parameters_.owned) {
      if (range.begin < mine.begin) at += range.size();
    }
    std::vector<std::int64_t> bytes = bucket.counts;
    for (std::int64_t& count : bytes) count *= static_cast<std::int64_t>(sizeof(Sum));
    replicas_.post_all_gather_v(
        std::as_bytes(span_of(owned.data() + at, mine.size())), bytes,
        std::as_writable_bytes(span_of(all.data() + bucket.elements.begin, bucket.elements.size())),
        static_cast<int>(index));
    replicas_.wait(static_cast<int>(index));
  }
  return all;
}

template class GradientReducer<bfloat16>;
template class GradientReducer<float>;
template class GradientReducer<double>;

}  // namespace cadenza::exec
