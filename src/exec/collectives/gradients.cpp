// SPDX-License-Identifier: Apache-2.0
#include "exec/collectives/gradients.hpp"

#include <algorithm>
#include <type_traits>

namespace cadenza::exec {

namespace {

/// Elements [range) of a flat array.
template <typename View>
auto part(const View& view, Range range) {
  return Kokkos::subview(
      view, std::pair(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.end)));
}

/// The elements [range) as collectives read and write them.
template <typename T>
std::span<T> elements_of(T* data, Range range) {
  return {data + range.begin, static_cast<std::size_t>(range.size())};
}

/// Bytes of each rank's part of a bucket.
template <typename T>
std::vector<std::int64_t> byte_counts(const GradientShards::Bucket& bucket) {
  std::vector<std::int64_t> bytes = bucket.counts;
  for (std::int64_t& count : bytes) count *= static_cast<std::int64_t>(sizeof(T));
  return bytes;
}

}  // namespace

template <typename Real>
GradientReducer<Real>::GradientReducer(model::Parameters<Real>& parameters,
                                       DeviceCommunicator& replicas, bool shards, Tracer& tracer,
                                       MemoryLedger& ledger)
    : parameters_(parameters),
      replicas_(replicas),
      shards_(shards),
      tracer_(tracer),
      shares_(parameters.table, replicas.size()),
      posted_ns_(shares_.buckets().size(), 0) {
  if (!shards) return;
  for (const GradientShards::Bucket& bucket : shares_.buckets()) {
    sums_.push_back(allocate<Sum>(ledger, MemoryKind::gradients, "gradient_share",
                                  bucket.of(replicas.rank()).size()));
  }
}

template <typename Real>
void GradientReducer<Real>::post_layer(int layer) {
  if (replicas_.size() > 1) post(static_cast<std::size_t>(layer));
}

template <typename Real>
void GradientReducer<Real>::post(std::size_t index) {
  const GradientShards::Bucket& bucket = shares_.buckets()[index];
  const std::span<Sum> gradients = elements_of(parameters_.gradients.data(), bucket.elements);
  const int channel = static_cast<int>(index);
  if (shards_) {
    replicas_.post_reduce_scatter(std::span<const Sum>(gradients), bucket.counts,
                                  elements_of(sums_[index].data(), {0, bucket.of(rank()).size()}),
                                  channel);
  } else {
    replicas_.post_all_reduce(gradients, channel);
  }
  posted_ns_[index] = trace::now_ns();
}

template <typename Real>
void GradientReducer<Real>::complete(std::size_t index) {
  const GradientShards::Bucket& bucket = shares_.buckets()[index];
  replicas_.wait(static_cast<int>(index));
  if (shards_) {
    Kokkos::deep_copy(Device(), part(parameters_.gradients, bucket.of(rank())), sums_[index]);
  }
  constexpr auto kKind = program::OtherEvent::reduce_gradients_message;
  tracer_.message(kKind, posted_ns_[index], trace::now_ns(),
                  {.bytes = bucket.elements.size() * static_cast<std::int64_t>(sizeof(Sum)),
                   .flow = tracer_.next_flow(replicas_.group(), kKind)});
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
    const std::span<const Real> mine = elements_of(parameters_.weights.data(), bucket.of(rank()));
    const std::span<Real> all = elements_of(parameters_.weights.data(), bucket.elements);
    replicas_.post_all_gather_v(std::as_bytes(mine), byte_counts<Real>(bucket),
                                std::as_writable_bytes(all), static_cast<int>(index));
    replicas_.wait(static_cast<int>(index));
  }
}

template <typename Real>
std::vector<Accumulator<Real>> GradientReducer<Real>::gather_owned(const Array<Sum>& of_owned) {
  const auto owned = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, of_owned);
  std::vector<Sum> all(static_cast<std::size_t>(parameters_.table.elements));
  if (!shards_) {
    std::copy_n(owned.data(), all.size(), all.begin());
    return all;
  }
  comm::Communicator& replicas = replicas_.group();
  for (std::size_t index = 0; index < posted_ns_.size(); ++index) {
    const GradientShards::Bucket& bucket = shares_.buckets()[index];
    const Range mine = bucket.of(rank());
    std::int64_t at = 0;  // first element of this share among the owned ones
    for (const Range& range : parameters_.owned) {
      if (range.begin < mine.begin) at += range.size();
    }
    const std::span<const Sum> share = elements_of(owned.data(), {at, at + mine.size()});
    replicas.post_all_gather_v(std::as_bytes(share), byte_counts<Sum>(bucket),
                               std::as_writable_bytes(elements_of(all.data(), bucket.elements)),
                               static_cast<int>(index));
    replicas.wait(static_cast<int>(index));
  }
  return all;
}

template <typename Real>
std::vector<Accumulator<Real>> GradientReducer<Real>::gather_masters() {
  if constexpr (!std::is_same_v<Real, Sum>) {
    return gather_owned(parameters_.masters);
  } else {
    const auto weights =
        Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, parameters_.weights);
    return {weights.data(), weights.data() + weights.size()};
  }
}

template class GradientReducer<bfloat16>;
template class GradientReducer<float>;
template class GradientReducer<double>;

Groups::Groups(comm::Communicator& world, const program::StepShape& shape,
               config::Transport transport) {
  const program::Layout& layout = shape.layout;
  const Rank rank = world.rank();
  const bool trains = layout.trains(rank);
  const program::Coordinates at = trains ? layout.coordinates(rank) : program::Coordinates{};
  const auto split = [&](int color) { return world.split(trains ? color : layout.trainers()); };
  pool = world.split(layout.pool_of(rank));
  trainers = split(0);
  replicas = split(at.pipeline * layout.tensor() + at.tensor);
  model = split(at.data * layout.context() + at.context);
  context = split((at.pipeline * layout.data() + at.data) * layout.tensor() + at.tensor);
  tensor = split(rank / layout.tensor());
  const auto over = [&](comm::Communicator& group, Purpose purpose) {
    return make_device_communicator(group, transport, purpose);
  };
  for (int half = 0; half < shape.halves; ++half) {
    inputs.push_back(over(*pool, Purpose::attention));
    results.push_back(over(*pool, Purpose::attention));
  }
  gradients = over(*replicas, Purpose::gradients);
  slices = over(*tensor, Purpose::slices);
  streams = std::make_unique<PipelineEdges>(world, shape, transport);
}

}  // namespace cadenza::exec
