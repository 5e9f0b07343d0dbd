// SPDX-License-Identifier: Apache-2.0
// Core attention alone: Q, K, V from a file, through a placement and real messages, results to a
// file.
#include <algorithm>
#include <numeric>

#include "cadenza/app/agree.hpp"
#include "cadenza/app/commands.hpp"
#include "cadenza/app/dtype.hpp"
#include "cadenza/app/experiment_file.hpp"
#include "cadenza/app/machine.hpp"
#include "cadenza/exec/exchange.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/plan/validate.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::app {
namespace {

using program::Operation;
using program::Pass;

/// What the input file says before its rows are read.
struct Problem {
  plan::AttentionShape shape;
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;
  bool backward = false;
};

void require_shape(const storage::File& file, const char* dataset, const storage::Shape& valid) {
  const storage::Shape found = file.shape(dataset);
  if (found == valid) return;
  fail(ExitCode::data, "{}: {}: found shape [{}]; valid: [{}]", file.path(), dataset,
       fmt::join(found, ", "), fmt::join(valid, ", "));
}

template <typename Real>
Problem read_problem(const storage::File& file) {
  const storage::Shape q = file.shape("q");
  const storage::Shape k = file.shape("k");
  if (q.size() != 3 || k.size() != 3) {
    fail(ExitCode::data,
         "{}: q and k: found {} and {} dimensions; valid: [tokens, heads, head_dim]", file.path(),
         q.size(), k.size());
  }
  if (q[1] == 0 || k[1] == 0 || q[2] == 0 || q[1] % k[1] != 0) {
    fail(ExitCode::data,
         "{}: found {} query heads of {} and {} key-value heads; valid: query heads "
         "a multiple of key-value heads, none of them zero",
         file.path(), q[1], q[2], k[1]);
  }
  require_shape(file, "k", {q[0], k[1], q[2]});
  require_shape(file, "v", {q[0], k[1], q[2]});
  Problem problem;
  problem.backward = file.contains("dout");
  if (problem.backward) require_shape(file, "dout", q);
  problem.tokens = static_cast<std::int64_t>(q[0]);
  problem.shape = {static_cast<int>(q[1]), static_cast<int>(k[1]), static_cast<int>(q[2]),
                   static_cast<int>(sizeof(Real)), static_cast<int>(sizeof(Accumulator<Real>))};
  const storage::Shape documents = file.shape("document_lengths");
  problem.lengths = file.read<std::int64_t>("document_lengths", documents);
  const auto total =
      std::accumulate(problem.lengths.begin(), problem.lengths.end(), std::int64_t{0});
  if (total != problem.tokens ||
      std::ranges::any_of(problem.lengths, [](std::int64_t length) { return length < 1; })) {
    fail(ExitCode::data,
         "{}: document_lengths: found {} documents with {} tokens together; valid: "
         "lengths of at least 1 that sum to the {} tokens of q",
         file.path(), problem.lengths.size(), total, problem.tokens);
  }
  return problem;
}

/// Whole documents go to trainers in order, each to the one in whose equal share of the tokens it
/// is centred.
plan::Workload make_workload(const config::Experiment& experiment, const Problem& problem,
                             int ranks) {
  plan::Workload workload;
  workload.lengths = problem.lengths;
  workload.shape = problem.shape;
  workload.ranks = ranks;
  const auto trainers = experiment.parallel.trainers();
  std::int64_t before = 0;
  for (std::size_t document = 0; document < problem.lengths.size(); ++document) {
    const std::int64_t length = problem.lengths[document];
    const std::int64_t rank = (2 * before + length) * trainers / (2 * problem.tokens);
    workload.homes.push_back(
        {static_cast<Rank>(std::min(rank, trainers - 1)), static_cast<int>(document), {0, length}});
    before += length;
  }
  workload.servers = plan::attention_servers(experiment);
  return workload;
}

/// Tokens of `rank`: contiguous, since documents are laid out in order.
Range tokens_of(const plan::Workload& workload, Rank rank) {
  Range range;
  std::int64_t before = 0;
  for (const plan::Home& home : workload.homes) {
    const std::int64_t length = home.tokens.size();
    if (home.rank == rank) {
      if (range.empty()) range.begin = before;
      range.end = before + length;
    }
    before += length;
  }
  return range;
}

/// The tensors of this rank's tokens and, on rank 0, the way of results to the output file. Files
/// hold sums: of bfloat16, inputs are rounded on their way in.
template <typename Real>
class Rows {
 public:
  using Sum = Accumulator<Real>;

  Rows(comm::Communicator& world, const Problem& problem, const plan::Workload& workload,
       MemoryLedger& ledger)
      : world_(world),
        problem_(problem),
        workload_(workload),
        mine_(tokens_of(workload, world.rank())) {
    for (std::size_t at = 0; at < sums_.size(); ++at) {
      const auto what = static_cast<plan::Tensor>(at);
      const std::int64_t elements = mine_.size() * width(what);
      if (exec::is_input(what)) {
        inputs_[at] = allocate<Real>(ledger, MemoryKind::activations, "attend", elements);
      } else {
        sums_[at] = allocate<Sum>(ledger, MemoryKind::activations, "attend", elements);
      }
    }
  }

  model::AttentionSlot<Real> slot() {
    using plan::Tensor;
    const auto in = [&](Tensor what) { return inputs_[static_cast<std::size_t>(what)].data(); };
    const auto sum = [&](Tensor what) { return sums_[static_cast<std::size_t>(what)].data(); };
    return {in(Tensor::q),    in(Tensor::k),    in(Tensor::v),      sum(Tensor::o),
            sum(Tensor::lse), in(Tensor::dout), sum(Tensor::delta), sum(Tensor::dq),
            sum(Tensor::dk),  sum(Tensor::dv)};
  }

  void load(const storage::File& file, const char* dataset, plan::Tensor what) {
    const std::vector<Sum> all = file.read<Sum>(dataset, file.shape(dataset));
    const Array<Real>& rows = inputs_[static_cast<std::size_t>(what)];
    auto host = Kokkos::create_mirror_view(rows);
    std::transform(all.begin() + mine_.begin * width(what), all.begin() + mine_.end * width(what),
                   host.data(), [](Sum value) { return static_cast<Real>(value); });
    Kokkos::deep_copy(rows, host);
  }

  /// All ranks' rows of `what` on rank 0, in token order. Collective.
  std::vector<Sum> collect(plan::Tensor what) {
    auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{},
                                                    sums_[static_cast<std::size_t>(what)]);
    std::vector<Sum> all;
    if (world_.rank() == 0) {
      all.resize(static_cast<std::size_t>(problem_.tokens * width(what)));
      std::copy_n(host.data(), host.extent(0), all.begin() + mine_.begin * width(what));
      for (Rank rank = 1; rank < world_.size(); ++rank) {
        const Range tokens = tokens_of(workload_, rank);
        const std::span part(all.data() + tokens.begin * width(what),
                             static_cast<std::size_t>(tokens.size() * width(what)));
        if (!part.empty()) world_.post_receive(std::as_writable_bytes(part), rank, 0, 0);
      }
    } else if (host.extent(0) > 0) {
      world_.post_send(std::as_bytes(std::span<Sum>(host.data(), host.extent(0))), 0, 0, 0);
    }
    world_.wait(0);
    return all;
  }

  storage::Shape shape(plan::Tensor what) const {
    const auto size = [](std::int64_t value) { return static_cast<hsize_t>(value); };
    const int heads = plan::is_key_side(what) ? problem_.shape.kv_heads : problem_.shape.heads;
    if (what == plan::Tensor::lse) return {size(problem_.tokens), size(heads)};
    return {size(problem_.tokens), size(heads), size(problem_.shape.head_dim)};
  }

 private:
  std::int64_t width(plan::Tensor what) const { return exec::row_elements(problem_.shape, what); }

  comm::Communicator& world_;
  const Problem& problem_;
  const plan::Workload& workload_;
  Range mine_;
  std::array<Array<Real>, 10> inputs_;  ///< by plan::Tensor, as exec::is_input says
  std::array<Array<Sum>, 10> sums_;     ///< the others
};

/// The attention operations of a one-layer program.
template <typename Real>
void run_program(exec::AttentionExchange<Real>& exchange, const program::Program& program,
                 Pass pass) {
  for (const program::Step& step : program.steps) {
    if (step.pass != pass) continue;
    switch (step.operation) {
      case Operation::begin_attention:
        exchange.begin(pass);
        break;
      case Operation::post:
        exchange.post(pass, step.stage);
        break;
      case Operation::wait:
        exchange.wait(pass, step.stage);
        break;
      case Operation::attend:
        exchange.attend(pass, step.stage);
        break;
      default:
        break;  // the dense operations of a training step
    }
  }
}

program::TickPlans make_plans(const config::Experiment& experiment,
                              const plan::Workload& workload) {
  program::TickPlans plans;
  plans.forward = plan::make_plan(experiment.attention, workload);
  plans.backward = plan::mirror(plans.forward);
  plan::require_valid(plans.forward, plans.backward);
  return plans;
}

template <typename Real>
void attend_as(comm::Communicator& world, const config::Experiment& experiment,
               const CommandLine& line) {
  using plan::Tensor;
  std::optional<storage::File> input;
  Problem problem;
  program::TickPlans plans;
  together(world, [&] {
    input = storage::File::open(line.input);
    problem = read_problem<Real>(*input);
    plans = make_plans(experiment, make_workload(experiment, problem, world.size()));
  });
  const kernels::AttentionShape shape = {problem.shape.heads, problem.shape.kv_heads,
                                         problem.shape.head_dim};
  announce_kernels<Real>(world, shape);
  MemoryLedger ledger;
  Rows<Real> rows(world, problem, plans.forward.workload, ledger);
  together(world, [&] {
    rows.load(*input, "q", Tensor::q);
    rows.load(*input, "k", Tensor::k);
    rows.load(*input, "v", Tensor::v);
    if (problem.backward) rows.load(*input, "dout", Tensor::dout);
  });

  trace::Recorder recorder(0);
  exec::Tracer tracer(recorder, ledger, false, false);
  exec::AttentionExchange<Real> exchange(world, shape, {}, tracer, ledger);
  exchange.bind(plans, 0);
  exchange.set_layer(0, rows.slot());
  const auto program = program::make_program(
      world.rank(), static_cast<int>(experiment.parallel.trainers()), 1, std::span(&plans, 1));
  run_program(exchange, program, Pass::forward);
  if (problem.backward) run_program(exchange, program, Pass::backward);

  std::vector<std::pair<const char*, Tensor>> results = {{"out", Tensor::o}, {"lse", Tensor::lse}};
  if (problem.backward) {
    results.insert(results.end(), {{"dq", Tensor::dq}, {"dk", Tensor::dk}, {"dv", Tensor::dv}});
  }
  std::optional<storage::File> output;
  together(world, [&] {
    if (world.rank() == 0) output = storage::File::create(line.output);
  });
  for (const auto& [name, what] : results) {
    const auto values = rows.collect(what);
    together(world, [&, name = name, what = what] {
      if (world.rank() == 0) output->write(name, rows.shape(what), values.data());
    });
  }
  together(world, [&] {
    if (world.rank() == 0) output->close();
  });
}

}  // namespace

void attend(comm::Communicator& world, const CommandLine& line) {
  const config::Experiment experiment = load_experiment(world, line.experiment, line.overrides);
  with_real(experiment.run.dtype,
            [&]<typename Real>(Real) { attend_as<Real>(world, experiment, line); });
}

}  // namespace cadenza::app
