// SPDX-License-Identifier: Apache-2.0
// Chooses vertical-slash patterns: runs the passes of cadenza/kernels/observe.hpp over each rank's
// keys, and sums over ranks between the passes.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "cadenza/kernels/observe.hpp"
#include "exec/attention/index_estimator.hpp"

namespace cadenza::exec {
namespace {

using plan::IndexRound;
using plan::Tensor;

constexpr std::int64_t kObserved = kernels::kObserved;
/// Keys of a job: enough for a thread, few enough to occupy all threads.
constexpr std::int64_t kJobKeys = 1024;

template <typename Real>
class VerticalSlash final : public IndexEstimator<Real> {
 public:
  using Sum = Accumulator<Real>;
  using typename IndexEstimator<Real>::Keep;

  VerticalSlash(const AttentionShape& shape, const kernels::RotaryTable<Sum>& rotary)
      : shape_(shape), rotary_(rotary) {}

  void begin(const plan::Workload& workload, std::span<IndexDocument> documents,
             std::span<const SparseRule> rules, const Real* q, const Real* k) override;
  void pack(const plan::Move& move, std::byte*& to) override;
  void unpack(const plan::Move& move, const std::byte*& from) override;
  void estimate(IndexRound round, const Keep& keep) override;

 private:
  /// State of one head of a document, in the order of the rounds.
  struct Head {
    std::vector<Sum> queries;  ///< [head_dim, kObserved]
    std::vector<Sum> scores;   ///< [keys held, kObserved]
    std::vector<Sum> peak;     ///< [kObserved] of all ranks so far
    std::vector<std::int64_t> sum;
    std::vector<Sum> factor;
    ObservedMass mass;                                ///< of an owned head: of the whole document
    std::vector<std::uint32_t> columns;               ///< [keys held]
    std::vector<std::vector<std::uint32_t>> slashes;  ///< by home of this rank
  };
  struct Jobs;

  std::vector<Head>& heads_of(const IndexDocument& document) {
    return heads_[document.parts.document];
  }
  static int rows(const IndexDocument& document) {
    return static_cast<int>(SparseRule::observed(document.length).size());
  }
  std::vector<plan::Home> queries_here(const IndexDocument& document) const;
  void place_queries(const IndexDocument& document, Range tokens, const Real* rows);
  void find_logits();
  void add_up();
  void find_masses();
  void take_own_masses();
  void add_mass(const IndexDocument& document, Range tokens, std::int64_t head,
                const std::uint32_t* columns, const std::uint32_t* slashes);
  void choose(const Keep& keep);

  AttentionShape shape_;
  const kernels::RotaryTable<Sum>& rotary_;
  const plan::Workload* workload_ = nullptr;
  std::span<IndexDocument> documents_;
  std::span<const SparseRule> rules_;
  const Real* keys_ = nullptr;
  std::map<int, std::vector<Head>> heads_;  ///< by document
};

/// Gathers and rotates the observed queries at home, for every document of which this rank has
/// some.
template <typename Real>
void VerticalSlash<Real>::begin(const plan::Workload& workload, std::span<IndexDocument> documents,
                                std::span<const SparseRule> rules, const Real* q, const Real* k) {
  workload_ = &workload;
  documents_ = documents;
  rules_ = rules;
  keys_ = k;
  heads_.clear();
  for (const IndexDocument& document : documents_) {
    heads_of(document).resize(document.holds() ? at(shape_.heads) : 0);
    for (const plan::Home& part : queries_here(document)) {
      const std::int64_t row = document.row_of(part.tokens.begin);
      std::vector<Real> rows;
      rotate_queries<Real>(workload, document.length, part.tokens,
                           q + row * shape_.heads * shape_.head_dim, shape_, rotary_, rows);
      place_queries(document, part.tokens, rows.data());
    }
  }
}

template <typename Real>
std::vector<plan::Home> VerticalSlash<Real>::queries_here(const IndexDocument& document) const {
  std::vector<plan::Home> parts;
  for (const plan::Home& home : document.homes) {
    std::ranges::copy(plan::within_text(*workload_, home, SparseRule::observed(document.length)),
                      std::back_inserter(parts));
  }
  return parts;
}

/// @param rows  [tokens, heads, head_dim], rotated
template <typename Real>
void VerticalSlash<Real>::place_queries(const IndexDocument& document, Range tokens,
                                        const Real* rows) {
  std::vector<Head>& heads = heads_of(document);
  for (Head& head : heads) head.queries.resize(at(shape_.head_dim * kObserved), 0);
  for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
    const std::int64_t lane = plan::position_of(workload_->order, document.length, token) -
                              SparseRule::observed(document.length).begin;
    for (Head& head : heads) {
      for (int d = 0; d < shape_.head_dim; ++d) {
        head.queries[at(d * kObserved + lane)] = static_cast<Sum>(*rows++);
      }
    }
  }
}

template <typename Real>
void VerticalSlash<Real>::pack(const plan::Move& move, std::byte*& to) {
  const IndexDocument& document = document_of(documents_, move.document);
  const std::vector<Head>& heads = heads_of(document);
  if (move.what == Tensor::observed) {
    for (std::int64_t token = move.tokens.begin; token < move.tokens.end; ++token) {
      const std::int64_t lane = plan::position_of(workload_->order, document.length, token) -
                                SparseRule::observed(document.length).begin;
      for (const Head& head : heads) {
        for (int d = 0; d < shape_.head_dim; ++d) {
          const auto value = static_cast<Real>(head.queries[at(d * kObserved + lane)]);
          write(to, &value, 1);
        }
      }
    }
    return;
  }
  for (std::int64_t h = move.heads.begin; h < move.heads.end; ++h) {
    const Head& head = heads[at(h)];
    if (move.what == Tensor::peak) write(to, head.peak.data(), rows(document));
    if (move.what == Tensor::sum) write(to, head.sum.data(), rows(document));
    if (move.what != Tensor::mass) continue;
    std::int64_t held = 0;
    for (std::size_t n = 0; n < document.homes.size(); ++n) {
      const Range tokens = document.homes[n].tokens;
      if (tokens == move.tokens) {
        write(to, head.columns.data() + held, tokens.size());
        write(to, head.slashes[n].data(), std::ssize(head.slashes[n]));
      }
      held += tokens.size();
    }
  }
}

template <typename Real>
void VerticalSlash<Real>::unpack(const plan::Move& move, const std::byte*& from) {
  const IndexDocument& document = document_of(documents_, move.document);
  if (move.what == Tensor::observed) {
    std::vector<Real> arrived(at(move.tokens.size() * shape_.heads * shape_.head_dim));
    read(from, arrived.data(), std::ssize(arrived));
    return place_queries(document, move.tokens, arrived.data());
  }
  for (std::int64_t h = move.heads.begin; h < move.heads.end; ++h) {
    Head& head = heads_of(document)[at(h)];
    if (move.what == Tensor::peak) {
      std::array<Sum, kObserved> others;
      read(from, others.data(), rows(document));
      for (int i = 0; i < rows(document); ++i) {
        head.peak[at(i)] = kernels::larger_logit(head.peak[at(i)], others[at(i)]);
      }
    } else if (move.what == Tensor::sum) {
      std::array<std::int64_t, kObserved> others;
      read(from, others.data(), rows(document));
      for (int i = 0; i < rows(document); ++i) head.sum[at(i)] += others[at(i)];
    } else {
      std::vector<std::uint32_t> columns(at(move.tokens.size()));
      std::vector<std::uint32_t> slashes(
          at(plan::observed_diagonals(*workload_, move.document, move.tokens).size()));
      read(from, columns.data(), std::ssize(columns));
      read(from, slashes.data(), std::ssize(slashes));
      add_mass(document, move.tokens, h, columns.data(), slashes.data());
    }
  }
}

template <typename Real>
void VerticalSlash<Real>::estimate(IndexRound round, const Keep& keep) {
  switch (round) {
    case IndexRound::observed:
      return find_logits();
    case IndexRound::peak:
      return add_up();
    case IndexRound::sum:
      return find_masses();
    case IndexRound::mass:
      return choose(keep);
    case IndexRound::pattern:
      break;
  }
}

/// The passes of cadenza/kernels/observe.hpp over a tick; every job has its own results, so threads
/// share nothing.
template <typename Real>
struct VerticalSlash<Real>::Jobs {
  struct Own {
    const IndexDocument* document;
    Head* head;
    std::size_t home;
    std::array<Sum, kObserved> peak;
    std::array<std::int64_t, kObserved> sum{};
    std::vector<std::uint32_t> slashes;
  };
  std::vector<kernels::ObserveJob<Real>> jobs;
  std::vector<std::unique_ptr<Own>> own;  ///< by job

  Jobs(VerticalSlash& of, const Real* keys) {
    for (const IndexDocument& document : of.documents_) {
      std::vector<Head>& heads = of.heads_of(document);
      for (std::int64_t head = 0; head < std::ssize(heads); ++head) {
        for (const KeyRun& run : document.runs) {
          add(document, heads[at(head)], head, run, of.shape_, keys);
        }
      }
    }
  }

  void add(const IndexDocument& document, Head& head, std::int64_t number, const KeyRun& run,
           const AttentionShape& shape, const Real* keys) {
    const std::int64_t stride = std::int64_t{shape.kv_heads} * shape.head_dim;
    for (std::int64_t begin = 0; begin < run.text.tokens.size(); begin += kJobKeys) {
      const std::int64_t held = run.held + begin;
      const std::int64_t row = run.row + begin;
      kernels::ObserveJob<Real> job;
      job.queries = head.queries.data();
      job.rows = rows(document);
      job.first_query = SparseRule::observed(document.length).begin;
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
      own.back()->head = &head;
      own.back()->home = run.home;
      job.sum = own.back()->sum.data();
      jobs.push_back(job);
    }
  }
};

template <typename Real>
void VerticalSlash<Real>::find_logits() {
  const Sum scale = Sum(1) / std::sqrt(static_cast<Sum>(shape_.head_dim));
  std::int64_t rows = 0;
  for (const IndexDocument& document : documents_) {
    for (const KeyRun& run : document.runs) {
      rows = std::max(rows, run.row + run.text.tokens.size());
    }
    for (Head& head : heads_of(document)) {
      for (Sum& element : head.queries) element *= scale;
      head.scores.resize(at(document.keys * kObserved));
      head.peak.assign(at(kObserved), -std::numeric_limits<Sum>::infinity());
    }
  }
  const auto keys = on_host<Real>(keys_, rows * std::int64_t{shape_.kv_heads} * shape_.head_dim);
  Jobs jobs(*this, keys.data());
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    jobs.own[i]->peak.fill(-std::numeric_limits<Sum>::infinity());
    jobs.jobs[i].peak = jobs.own[i]->peak.data();
  }
  kernels::observe_logits<Real>(shape_.head_dim, jobs.jobs);
  for (const auto& own : jobs.own) {
    std::vector<Sum>& peak = own->head->peak;
    for (std::size_t lane = 0; lane < peak.size(); ++lane) {
      peak[lane] = kernels::larger_logit(peak[lane], own->peak[lane]);
    }
  }
}

template <typename Real>
void VerticalSlash<Real>::add_up() {
  for (const IndexDocument& document : documents_) {
    std::vector<Head>& heads = heads_of(document);
    for (std::int64_t h = 0; h < std::ssize(heads); ++h) {
      require_finite<Sum>(document, h, std::span(heads[at(h)].peak).first(at(rows(document))));
      heads[at(h)].sum.assign(at(kObserved), 0);
    }
  }
  Jobs jobs(*this, nullptr);
  kernels::observe_sums<Real>(jobs.jobs);
  for (const auto& own : jobs.own) {
    std::vector<std::int64_t>& sum = own->head->sum;
    for (std::size_t lane = 0; lane < sum.size(); ++lane) sum[lane] += own->sum[lane];
  }
}

template <typename Real>
void VerticalSlash<Real>::find_masses() {
  for (const IndexDocument& document : documents_) {
    for (Head& head : heads_of(document)) {
      head.factor.assign(at(kObserved), 0);
      for (int lane = 0; lane < rows(document); ++lane) {
        head.factor[at(lane)] = static_cast<Sum>(kMassUnit * kernels::kSumUnit /
                                                 static_cast<double>(head.sum[at(lane)]));
      }
      head.columns.resize(at(document.keys));
      head.slashes.clear();
      for (const plan::Home& home : document.homes) {
        head.slashes.emplace_back(
            at(plan::observed_diagonals(*workload_, home.document, home.tokens).size()), 0);
      }
    }
  }
  Jobs jobs(*this, nullptr);
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    jobs.own[i]->slashes.assign(at(kernels::diagonals(jobs.jobs[i]).size()), 0);
    jobs.jobs[i].slashes = jobs.own[i]->slashes.data();
  }
  kernels::observe_masses<Real>(jobs.jobs);
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    const auto& own = *jobs.own[i];
    const plan::Home& home = own.document->homes[own.home];
    const std::int64_t first =
        plan::observed_diagonals(*workload_, home.document, home.tokens).begin;
    const Range found = kernels::diagonals(jobs.jobs[i]);
    std::vector<std::uint32_t>& slashes = own.head->slashes[own.home];
    // Below 0 no query sees a key; behind the last diagonal there is no query.
    const Range real = intersect(found, {0, first + std::ssize(slashes)});
    for (std::int64_t diagonal = real.begin; diagonal < real.end; ++diagonal) {
      slashes[at(diagonal - first)] += own.slashes[at(diagonal - found.begin)];
    }
  }
  take_own_masses();
}

template <typename Real>
void VerticalSlash<Real>::take_own_masses() {
  for (const IndexDocument& document : documents_) {
    std::vector<Head>& heads = heads_of(document);
    for (std::int64_t h = document.owned.heads.begin; h < document.owned.heads.end; ++h) {
      Head& head = heads[at(h)];
      head.mass.columns.assign(at(document.length), 0);
      head.mass.slashes.assign(at(document.length), 0);
      std::int64_t held = 0;
      for (std::size_t n = 0; n < document.homes.size(); ++n) {
        add_mass(document, document.homes[n].tokens, h, head.columns.data() + held,
                 head.slashes[n].data());
        held += document.homes[n].tokens.size();
      }
    }
  }
}

template <typename Real>
void VerticalSlash<Real>::add_mass(const IndexDocument& document, Range tokens, std::int64_t head,
                                   const std::uint32_t* columns, const std::uint32_t* slashes) {
  ObservedMass& mass = heads_of(document)[at(head)].mass;
  for (const plan::TextRun& run : plan::text_runs(workload_->order, document.length, tokens)) {
    for (std::int64_t i = 0; i < run.tokens.size(); ++i) {
      mass.columns[at(run.first + i * run.step)] = *columns++;
    }
  }
  const Range diagonals = plan::observed_diagonals(*workload_, document.parts.document, tokens);
  for (std::int64_t diagonal = diagonals.begin; diagonal < diagonals.end; ++diagonal) {
    mass.slashes[at(diagonal)] += *slashes++;
  }
}

template <typename Real>
void VerticalSlash<Real>::choose(const Keep& keep) {
  for (const IndexDocument& document : documents_) {
    for (std::int64_t h = document.owned.heads.begin; h < document.owned.heads.end; ++h) {
      const SparseRule& rule = rules_.empty() ? workload_->sparse : rules_[at(h)];
      keep(document, h, choose_pattern(rule, heads_of(document)[at(h)].mass));
    }
  }
  heads_.clear();
}

}  // namespace

template <typename Real>
std::unique_ptr<IndexEstimator<Real>> make_vertical_slash(
    const AttentionShape& shape, const kernels::RotaryTable<Accumulator<Real>>& rotary) {
  return std::make_unique<VerticalSlash<Real>>(shape, rotary);
}

#define CADENZA_INSTANTIATE(Real)                                           \
  template std::unique_ptr<IndexEstimator<Real>> make_vertical_slash<Real>( \
      const AttentionShape&, const kernels::RotaryTable<Accumulator<Real>>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::exec
