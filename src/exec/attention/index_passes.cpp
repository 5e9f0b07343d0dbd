// SPDX-License-Identifier: Apache-2.0
// What a rank computes in the rounds of an index: cadenza/kernels/observe.hpp over its keys, and
// the choice of the patterns that it owns.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "cadenza/attention/core_attention.hpp"
#include "index_tick.hpp"

namespace cadenza::exec {
namespace {

using plan::IndexRound;

constexpr std::int64_t kObserved = kernels::kObserved;
/// Keys of a job: enough to keep a thread busy, few enough to keep all busy.
constexpr std::int64_t kJobKeys = 1024;

/// Device memory as the host sees it: a copy where it is other memory.
template <typename T>
auto on_host(T* data, std::int64_t count) {
  using Rows =
      Kokkos::View<T*, typename Array<T>::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, Rows(data, at(count)));
}

}  // namespace

/// The observed queries at home, rotated: a document's wherever this rank has some.
template <typename Real>
void IndexExchange<Real>::read_queries() {
  has_queries_ = true;
  const plan::Workload& workload = tick_->plans->forward.workload;
  for (Document& document : tick_->documents) {
    document.heads.assign(document.holds() ? at(shape_.heads) : 0, {});
    const std::int64_t row_elements = std::int64_t{shape_.heads} * shape_.head_dim;
    for (const plan::Home& part : document.parts.queries) {
      if (part.rank != pool_.rank()) continue;
      std::int64_t row = 0;
      for (const KeyRun& run : document.runs) {
        if (run.text.tokens.contains(part.tokens)) {
          row = run.row + part.tokens.begin - run.text.tokens.begin;
        }
      }
      const std::int64_t count = part.tokens.size();
      Array<Real> rows(Kokkos::view_alloc(Kokkos::WithoutInitializing, "observed"),
                       at(count * row_elements));
      Array<std::int32_t> positions("positions", at(count));
      auto host = Kokkos::create_mirror_view(positions);
      for (std::int64_t i = 0; i < count; ++i) {
        host(at(i)) = static_cast<std::int32_t>(
            plan::position_of(workload.order, document.length, part.tokens.begin + i));
      }
      Kokkos::deep_copy(positions, host);
      using Home = Kokkos::View<Real*, typename Array<Real>::memory_space,
                                Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
      Kokkos::deep_copy(rows, Home(context_->home.q + row * row_elements, rows.extent(0)));
      attention::rotate_keys<Real>(rotary_, rows.data(), positions, count, shape_.heads,
                                   shape_.head_dim);
      const auto turned = on_host(rows.data(), count * row_elements);
      place_queries(document, part.tokens, turned.data());
    }
  }
}

/// @param rows  [tokens, heads, head_dim], rotated
template <typename Real>
void IndexExchange<Real>::place_queries(Document& document, Range tokens, const Real* rows) {
  const plan::TokenOrder& order = tick_->plans->forward.workload.order;
  for (Head& head : document.heads) head.queries.resize(at(shape_.head_dim * kObserved), 0);
  for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
    const std::int64_t lane =
        plan::position_of(order, document.length, token) - document.parts.observed.begin;
    for (Head& head : document.heads) {
      for (int d = 0; d < shape_.head_dim; ++d) {
        head.queries[at(d * kObserved + lane)] = static_cast<Sum>(*rows++);
      }
    }
  }
}

template <typename Real>
void IndexExchange<Real>::estimate(IndexRound round) {
  switch (round) {
    case IndexRound::observed:
      return find_logits();
    case IndexRound::peak:
      return add_up();
    case IndexRound::sum:
      return find_masses();
    case IndexRound::mass:
      return choose();
    case IndexRound::pattern:
      break;
  }
}

/// The passes of cadenza/kernels/observe.hpp over a tick: jobs with results of their own, so that
/// threads share nothing.
template <typename Real>
struct IndexExchange<Real>::Jobs {
  struct Own {
    Document* document;
    std::int64_t head;
    std::size_t home;
    std::array<Sum, kObserved> peak;
    std::array<std::int64_t, kObserved> sum{};
    std::vector<std::uint32_t> slashes;
  };
  std::vector<kernels::ObserveJob<Real>> jobs;
  std::vector<std::unique_ptr<Own>> own;  ///< by job

  Jobs(Tick& tick, const kernels::AttentionShape& shape, const Real* keys) {
    for (Document& document : tick.documents) {
      if (!document.holds()) continue;
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        for (const KeyRun& run : document.runs) add(document, head, run, shape, keys);
      }
    }
  }

  void add(Document& document, std::int64_t number, const KeyRun& run,
           const kernels::AttentionShape& shape, const Real* keys) {
    Head& head = document.heads[at(number)];
    const std::int64_t stride = std::int64_t{shape.kv_heads} * shape.head_dim;
    for (std::int64_t begin = 0; begin < run.text.tokens.size(); begin += kJobKeys) {
      const std::int64_t held = run.held + begin;
      const std::int64_t row = run.row + begin;
      kernels::ObserveJob<Real> job;
      job.queries = head.queries.data();
      job.rows = document.rows();
      job.first_query = document.parts.observed.begin;
      job.keys =
          keys == nullptr ? nullptr : keys + row * stride + number / shape.group() * shape.head_dim;
      job.stride = stride;
      job.count = std::min(kJobKeys, run.text.tokens.size() - begin);
      job.first_key = run.text.first + begin * run.text.step;
      job.step = run.text.step;
      job.scores = head.scores.data() + held * kObserved;
      job.peak = head.peak.data();
      job.factor = head.factor.data();
      job.columns = head.columns.data() + held;
      own.push_back(std::make_unique<Own>());
      own.back()->document = &document;
      own.back()->head = number;
      own.back()->home = run.home;
      job.sum = own.back()->sum.data();
      jobs.push_back(job);
    }
  }
  Head& head_of(std::size_t job) { return own[job]->document->heads[at(own[job]->head)]; }
};

template <typename Real>
void IndexExchange<Real>::find_logits() {
  if (!has_queries_) read_queries();  // nobody else needs them
  has_queries_ = false;
  const Sum scale = Sum(1) / std::sqrt(static_cast<Sum>(shape_.head_dim));
  std::int64_t rows = 0;
  for (Document& document : tick_->documents) {
    for (const KeyRun& run : document.runs) {
      rows = std::max(rows, run.row + run.text.tokens.size());
    }
    for (Head& head : document.heads) {
      for (Sum& element : head.queries) element *= scale;
      head.scores.resize(at(document.keys * kObserved));
      head.peak.assign(at(kObserved), -std::numeric_limits<Sum>::infinity());
    }
  }
  const auto keys =
      on_host(context_->home.k, rows * std::int64_t{shape_.kv_heads} * shape_.head_dim);
  Jobs jobs(*tick_, shape_, keys.data());
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    jobs.own[i]->peak.fill(-std::numeric_limits<Sum>::infinity());
    jobs.jobs[i].peak = jobs.own[i]->peak.data();
  }
  kernels::observe_logits<Real>(shape_.head_dim, jobs.jobs);
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    std::vector<Sum>& peak = jobs.head_of(i).peak;
    for (std::size_t lane = 0; lane < peak.size(); ++lane) {
      peak[lane] = std::max(peak[lane], jobs.own[i]->peak[lane]);
    }
  }
}

template <typename Real>
void IndexExchange<Real>::add_up() {
  for (Document& document : tick_->documents) {
    for (Head& head : document.heads) head.sum.assign(at(kObserved), 0);
  }
  Jobs jobs(*tick_, shape_, nullptr);
  kernels::observe_sums<Real>(jobs.jobs);
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    std::vector<std::int64_t>& sum = jobs.head_of(i).sum;
    for (std::size_t lane = 0; lane < sum.size(); ++lane) sum[lane] += jobs.own[i]->sum[lane];
  }
}

template <typename Real>
void IndexExchange<Real>::find_masses() {
  const plan::Workload& workload = tick_->plans->forward.workload;
  for (Document& document : tick_->documents) {
    for (Head& head : document.heads) {
      head.factor.assign(at(kObserved), 0);
      for (int lane = 0; lane < document.rows(); ++lane) {
        head.factor[at(lane)] = static_cast<Sum>(kMassUnit * kernels::kSumUnit /
                                                 static_cast<double>(head.sum[at(lane)]));
      }
      head.columns.resize(at(document.keys));
      head.slashes.clear();
      for (const plan::Home& home : document.homes) {
        head.slashes.emplace_back(
            at(plan::observed_diagonals(workload, home.document, home.tokens).size()), 0);
      }
    }
  }
  Jobs jobs(*tick_, shape_, nullptr);
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    jobs.own[i]->slashes.assign(at(kernels::diagonals(jobs.jobs[i]).size()), 0);
    jobs.jobs[i].slashes = jobs.own[i]->slashes.data();
  }
  kernels::observe_masses<Real>(jobs.jobs);
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    const Document& document = *jobs.own[i]->document;
    const plan::Home& home = document.homes[jobs.own[i]->home];
    const std::int64_t first = plan::observed_diagonals(workload, home.document, home.tokens).begin;
    const Range found = kernels::diagonals(jobs.jobs[i]);
    std::vector<std::uint32_t>& slashes = jobs.head_of(i).slashes[jobs.own[i]->home];
    // Below 0 no query sees a key; behind the last diagonal there is no query.
    const Range real = intersect(found, {0, first + std::ssize(slashes)});
    for (std::int64_t diagonal = real.begin; diagonal < real.end; ++diagonal) {
      slashes[at(diagonal - first)] += jobs.own[i]->slashes[at(diagonal - found.begin)];
    }
  }
  for (Document& document : tick_->documents) {
    for (std::int64_t head = document.owned.begin; head < document.owned.end; ++head) {
      ObservedMass& mass = document.heads[at(head)].mass;
      mass.columns.assign(at(document.length), 0);
      mass.slashes.assign(at(document.length), 0);
      std::int64_t held = 0;
      for (std::size_t n = 0; n < document.homes.size(); ++n) {
        add_mass(document, document.homes[n].tokens, head,
                 document.heads[at(head)].columns.data() + held,
                 document.heads[at(head)].slashes[n].data());
        held += document.homes[n].tokens.size();
      }
    }
  }
}

template <typename Real>
void IndexExchange<Real>::add_mass(Document& document, Range tokens, std::int64_t head,
                                   const std::uint32_t* columns, const std::uint32_t* slashes) {
  const plan::Workload& workload = tick_->plans->forward.workload;
  ObservedMass& mass = document.heads[at(head)].mass;
  for (const plan::TextRun& run : plan::text_runs(workload.order, document.length, tokens)) {
    for (std::int64_t i = 0; i < run.tokens.size(); ++i) {
      mass.columns[at(run.first + i * run.step)] = *columns++;
    }
  }
  const Range diagonals = plan::observed_diagonals(workload, document.parts.document, tokens);
  for (std::int64_t diagonal = diagonals.begin; diagonal < diagonals.end; ++diagonal) {
    mass.slashes[at(diagonal)] += *slashes++;
  }
}

template <typename Real>
void IndexExchange<Real>::choose() {
  const SparseRule& rule = tick_->plans->forward.workload.sparse;
  std::vector<SparsePattern>& kept = kept_[at(context_->copy)];
  kept.clear();
  for (Document& document : tick_->documents) {
    const std::int64_t number = document.parts.document - tick_->group;
    for (std::int64_t head = document.owned.begin; head < document.owned.end; ++head) {
      const std::int64_t place = number * shape_.heads + head;
      if (std::ssize(kept) <= place) kept.resize(at(place + 1));
      const SparseRule& of_head = context_->rules.empty() ? rule : context_->rules[at(head)];
      kept[at(place)] = given_ != nullptr ? *given_->of(document.parts.document, head)
                                          : choose_pattern(of_head, document.heads[at(head)].mass);
      step_counts_.add(context_->layer, kept[at(place)]);
    }
    document.heads.clear();
    document.heads.shrink_to_fit();
  }
}

#define CADENZA_INSTANTIATE(Real)                                                  \
  template void IndexExchange<Real>::read_queries();                               \
  template void IndexExchange<Real>::place_queries(Document&, Range, const Real*); \
  template void IndexExchange<Real>::estimate(IndexRound);                         \
  template void IndexExchange<Real>::add_mass(Document&, Range, std::int64_t,      \
                                              const std::uint32_t*, const std::uint32_t*);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::exec
