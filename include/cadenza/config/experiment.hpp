// SPDX-License-Identifier: Apache-2.0
// All settings of an experiment, one struct per YAML block; fields and YAML keys are the same word.
// docs/experiment.md lists them with unit, default and range.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cadenza/base/attention_kernel.hpp"
#include "cadenza/base/mask.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/config/attention_kind.hpp"
#include "cadenza/config/placement_kind.hpp"
#include "cadenza/config/software.hpp"

namespace cadenza::config {

/// How rotary frequencies are changed for documents longer than those of training.
enum class RopeScalingKind { none, linear, yarn, llama3 };
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;                  ///< ratio of the longer length to that of training
  std::int64_t original_context = 0;  ///< yarn, llama3: tokens of training
  double beta_fast = 32;              ///< yarn: pairs with more turns in training stay
  double beta_slow = 1;               ///< yarn: pairs with fewer turns are divided by `factor`
  double mscale = 0;                  ///< yarn: see docs/attention.md; 0: not given
  double mscale_all_dim = 0;          ///< yarn; 0: not given
  double low_frequency = 1;           ///< llama3: like beta_slow
  double high_frequency = 4;          ///< llama3: like beta_fast
  double attention_factor = 0;        ///< yarn: the concentration factor; 0: not given
  bool truncate = true;               ///< yarn: the ramp begins and ends at whole pairs
};

struct Rope {
  double theta = 10000.0;
  RopeScaling scaling;
};

struct Model {
  std::int64_t layers = 0;
  std::int64_t d_model = 0;
  std::int64_t heads = 0;     ///< query heads
  std::int64_t kv_heads = 0;  ///< divides heads; default: heads
  std::int64_t ffn = 0;       ///< width of the SwiGLU branch
  std::int64_t vocab = 0;
  double norm_eps = 1e-5;
  Rope rope;
  bool tie_embeddings = false;
  std::int64_t own_head_dim = 0;  ///< model.head_dim; 0: d_model / heads, which then divides it
  bool qkv_bias = false;          ///< Q, K and V have biases
  bool qk_norm = false;           ///< RMS norms of every head of Q and of K, before the rotation

  std::int64_t head_dim() const { return own_head_dim > 0 ? own_head_dim : d_model / heads; }
  std::int64_t query_width() const { return heads * head_dim(); }
};

enum class Source { text, tokens, synthetic, retrieval };
enum class Tokenizer { byte };
enum class TokenType { uint16, uint32 };
enum class Distribution { constant, uniform, lognormal, pareto, list, histogram, file };
/// How documents are drawn from a histogram; see docs/data.md.
enum class DrawRule { independent, pretrain, prolong };

/// Lengths of synthetic documents, in tokens; drawn lengths are clamped to [min, max].
struct Lengths {
  Distribution distribution = Distribution::lognormal;
  std::int64_t min = 2;
  std::int64_t max = 0;              ///< 0: data.max_document
  double median = 1024;              ///< lognormal: median; constant: the length
  double sigma = 1.0;                ///< lognormal: standard deviation of log length
  double alpha = 1.2;                ///< pareto: tail exponent; `min` is its scale
  std::vector<std::int64_t> values;  ///< list: used in order, repeatedly
  std::string path;  ///< histogram: JSON list of [length, count]; file: lengths in order
  DrawRule rule = DrawRule::independent;  ///< histogram
  double stretch = 1;                     ///< histogram: factor on drawn lengths
};

/// What documents of source retrieval ask for; after RULER (arXiv 2404.06654).
enum class RetrievalTask { needles, values, variables, common_words, frequent_words };

/// Documents of source retrieval.
struct Retrieval {
  std::int64_t facts = 4;      ///< facts of a document; values: keys; variables: chains
  std::int64_t questions = 1;  ///< questions at its end, each about another fact
  double depth_min = 0;        ///< smallest depth of a fact: share of the filler before it
  double depth_max = 1;
  std::int64_t phrase = 16;  ///< longest phrase of the filler, tokens; the shortest has half
  RetrievalTask task = RetrievalTask::needles;
  std::int64_t answers = 4;  ///< values, common_words, frequent_words: words of an answer
  std::int64_t hops = 4;     ///< variables: assignments between a value and the asked variable

  /// Whether questions are about facts; otherwise about how often words occur.
  bool tells_facts() const {
    return task != RetrievalTask::common_words && task != RetrievalTask::frequent_words;
  }
  /// How many facts tell what one question asks for.
  std::int64_t links() const {
    if (task == RetrievalTask::values) return answers;
    return task == RetrievalTask::variables ? hops + 1 : 1;
  }
};

struct Data {
  Source source = Source::text;
  std::vector<std::string> path;  ///< text: files, folders, globs; tokens: .idx, .bin or .npy files
  std::vector<double> weights;    ///< shares of the entries of `path` in tokens; empty: in order
  Tokenizer tokenizer = Tokenizer::byte;
  std::int64_t max_document = 0;  ///< tokens; longer documents are cut; 0: batch.microbatch
  bool shuffle = false;
  TokenType dtype = TokenType::uint16;  ///< tokens
  std::int64_t document_end = -1;  ///< tokens: ends a document; needed by files without an index
  std::int64_t documents = 1024;   ///< synthetic, retrieval: documents in the corpus
  Lengths lengths;                 ///< synthetic, retrieval
  Retrieval retrieval;
  /// Documents that training does not see: entries as of `path`, or one share of the documents.
  std::vector<std::string> validation;
};

/// The share of the documents that data.validation holds out of training; none where it names
/// files, or nothing.
std::optional<double> held_out_share(const Data& data);

enum class Packing { fixed, balanced, pooled, best_fit };

/// Whether microbatches have equal costs and unequal lengths.
constexpr bool packs_by_cost(Packing packing) {
  return packing == Packing::balanced || packing == Packing::pooled;
}
/// Whether documents wait for later steps.
constexpr bool delays_documents(Packing packing) {
  return packing == Packing::balanced || packing == Packing::best_fit;
}

struct Batch {
  std::int64_t tokens = 0;  ///< tokens per step over all ranks
  /// Tokens per microbatch of one data-parallel rank; while it is open the least, one sequence of
  /// data.max_document.
  std::int64_t microbatch = 0;
  Packing packing = Packing::fixed;
  /// balanced, pooled: largest tokens of a microbatch, as a multiple of batch.microbatch; shares by
  /// cost: those of a rank, as a multiple of its part of a microbatch.
  double longest = 1.25;
  /// balanced, pooled: length at which a document's attention costs as much as its other layers
  /// (attention-linear break-even); 0: from the model's shape.
  std::int64_t break_even = 0;
  /// balanced: documents longer than outliers[i] wait in queue i until it has one for every
  /// microbatch of a step.
  std::vector<std::int64_t> outliers;
  bool microbatch_open = false;  ///< placement auto may choose `microbatch`: `auto` in the file
  bool longest_open = false;     ///< ... `longest`: see Parallel::open
};

/// The largest position of a query in dual chunk attention: attention.chunk, as in Megatron-LM, or
/// one less, as in the paper.
enum class ChunkCap { megatron, paper };

/// Order of a pipeline's forward and backward passes; see pipeline_schedule().
enum class PipelineSchedule { automatic, one_f_one_b, interleaved, phase_aligned };
/// State that is divided among ranks that hold the same parameters; `optimizer` is ZeRO's stage 1,
/// `parameters` its stage 3, which is planned and simulated but not executed.
enum class Shard { none, optimizer, parameters };

struct Parallel {
  std::int64_t data = 1;
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  PipelineSchedule schedule = PipelineSchedule::automatic;
  std::int64_t chunks = 1;  ///< interleaved: groups of layers per pipeline rank
  /// Layers by part, chunk c of stage s at c * pipeline + s; empty: program::stage_layers.
  std::vector<std::int64_t> stages;
  Shard shard = Shard::none;
  /// The type in which the ranks of a tensor group send their parts of a sum, which are added in
  /// the accumulator's type: `stored` rounds each part once.
  Precision tensor_sums = Precision::stored;
  /// Keys that placement auto may choose, because the file leaves them out or has `auto` there.
  struct Open {
    bool pipeline = false;
    bool tensor = false;
    bool context = false;
    bool chunks = false;
    bool shard = false;
  } open;

  std::int64_t trainers() const { return data * pipeline * tensor * context; }
};

/// Overlap of attention's messages with computation; `automatic`: the one that is predicted to be
/// faster, chosen once for a run.
enum class Overlap { none, ping_pong, automatic };
/// How a context group shares tokens where the placement does not say; see Shares.
enum class Sharding { contiguous, zigzag, dynamic, whole, ptrr };
/// The unit that is cut into a context group's chunks: every document, the whole microbatch, or the
/// one of both that is predicted to be faster for the microbatch (WLB-LLM).
enum class ShardUnit { document, sequence, predicted };
/// The measure by which CAD judges a move; see docs/plan.md.
enum class Priority { resident, paper, public_code };
enum class Bound { two_sided, one_sided };
/// Whether servers get Q, K, V again in the backward pass or keep them from the forward pass.
enum class Inputs { resend, keep };
/// all_gather: the keys that a rank gets, those that its queries see or all of its group.
enum class Gather { seen, all };

/// vertical_slash: the budget of a head; see SparseRule.
struct HeadBudget {
  std::int64_t columns = 0;
  std::int64_t slashes = 0;
  double top_p = 0;
  friend bool operator==(const HeadBudget&, const HeadBudget&) = default;
};

/// Settings of the sparse kinds; see SparseRule.
struct SparseAttention {
  std::optional<std::int64_t> block;  ///< absent: SparseTraits::block
  std::int64_t columns = 1024;
  std::int64_t slashes = 256;
  double top_p = 0;
  std::int64_t sinks = 16;
  std::int64_t window = 32;
  std::int64_t dense_below = 4096;
  std::int64_t dense_steps = 0;  ///< number of first steps in which all layers are dense
  std::int64_t refresh = 1;      ///< patterns are chosen every so many steps; 0: once
  std::int64_t stride = 16;      ///< xattention
  double threshold = 0.9;        ///< xattention
  std::string budgets;           ///< file of budgets; empty: all heads have the above
  /// By layer and query head: the budgets of that file; heads after the last have the above.
  std::vector<std::vector<HeadBudget>> heads;
  friend bool operator==(const SparseAttention&, const SparseAttention&) = default;
};

struct Attention {
  AttentionKind kind = AttentionKind::full;
  /// Kinds of the layers, in turns: of layer l, layers[l modulo their number], `kind` or `full`;
  /// empty: all have `kind`.
  std::vector<AttentionKind> layers;
  std::int64_t window = 0;    ///< window: keys that a query sees, its own among them
  std::int64_t sinks = 0;     ///< window: first tokens of a document that all queries see
  std::int64_t prefix = 0;    ///< prefix: first tokens of a document that see each other
  std::int64_t chunk = 8192;  ///< dual_chunk: positions that the model was trained with
  std::int64_t local = 1024;  ///< dual_chunk: positions that chunks share; stride: chunk - local
  ChunkCap cap = ChunkCap::megatron;  ///< dual_chunk
  SparseAttention sparse;             ///< sparse kinds
  PlacementKind placement = PlacementKind::cad;
  std::optional<Sharding> sharding;  ///< none (`auto`): by the placement, see shares()
  ShardUnit shard_unit = ShardUnit::document;
  std::int64_t head_parallel = 1;  ///< ulysses_ring: ranks of a context group that split the heads
  std::int64_t inner_ring = 1;     ///< rings: ranks of an inner ring, a node; 1: one ring
  std::int64_t servers = 0;        ///< 0: in_place (every trainer serves); N: dedicated ranks
  bool mixed = false;              ///< with dedicated ranks: trainers serve too
  /// Keys that placement auto may choose: see Parallel::open.
  struct Open {
    bool servers = false;
    bool mixed = false;
  } open;
  /// cad: rows of a rank and its planned speed in percent of a usual rank's.
  std::vector<std::array<double, 2>> capacity;
  /// `capacity` of each of the first `ranks` ranks, percent; empty where all ranks are equal.
  std::vector<std::int64_t> capacities(std::int64_t ranks) const;
  std::int64_t block = 128;  ///< smallest piece that is placed by itself, tokens
  /// cad: allowed relative deviation of a server's cost from the mean; no value (`auto`): in each
  /// tick the one that is predicted to be fastest.
  std::optional<double> tolerance;
  Bound bound = Bound::two_sided;
  Priority priority = Priority::resident;
  bool split_keys = true;  ///< cad: cut tasks along keys too where that lowers the plan's cost
  Inputs inputs = Inputs::resend;
  Gather gather = Gather::seen;
  Overlap overlap = Overlap::automatic;
  AttentionKernel kernel = AttentionKernel::automatic;

  /// Whether a layer of the model has full attention although `kind` is another.
  bool is_full(std::int64_t layer) const;
  /// Number of such layers among `range`.
  std::int64_t full_layers(Range range) const;
  /// The mask: which keys a query sees, at which positions. Of layers of `kind`.
  Mask mask() const;
  /// The rule that selects pairs of the mask, with the largest budgets of all heads.
  SparseRule sparse_rule() const;
  /// The rule of one head of the model.
  SparseRule sparse_rule(std::int64_t layer, std::int64_t head) const;
  /// How a context group shares tokens, with `given` resolved: where nothing is said, cad begins
  /// with the homes that leave it least to move; in ping-pong, whose halves these make unequal,
  /// with equal ones.
  Shares shares() const {
    const PlacementTraits& own = traits_of(placement);
    if (own.shares != Shares::given) return own.shares;
    if (!sharding) {
      const bool unequal = own.reach == Reach::pool && overlap != Overlap::ping_pong;
      return unequal ? Shares::dynamic : Shares::zigzag;
    }
    switch (*sharding) {
      case Sharding::contiguous:
        return Shares::contiguous;
      case Sharding::zigzag:
        return Shares::zigzag;
      case Sharding::dynamic:
        return Shares::dynamic;
      case Sharding::whole:
        return Shares::whole;
      case Sharding::ptrr:
        break;
    }
    return Shares::ptrr;
  }
  /// Whether documents get ranks of a context group by their cost, else equal tokens.
  bool shares_by_cost() const { return shares() == Shares::dynamic || shares() == Shares::whole; }
};

enum class OptimizerKind { adamw };
enum class Schedule { cosine, constant };

struct Optimizer {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;         ///< global gradient norm; 0: no clipping
  std::int64_t warmup = 10;  ///< steps
  Schedule schedule = Schedule::cosine;
};

enum class DeviceKind { host, cuda };
/// The transport of messages between ranks: NCCL (its emulation where the build found none), MPI on
/// the tensors' memory, or MPI on copies.
enum class Transport { automatic, nccl, mpi, staged };
enum class Dtype { bfloat16, float32, float64 };

/// Bytes of a stored number and of a sum.
struct ElementBytes {
  int element, accumulator;
};
constexpr ElementBytes element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::bfloat16:
      return {2, 4};
    case Dtype::float32:
      return {4, 4};
    case Dtype::float64:
      break;
  }
  return {8, 8};
}

/// Bytes of a number.
constexpr int bytes_of(Precision precision, Dtype dtype) {
  const ElementBytes bytes = element_bytes(dtype);
  return precision == Precision::sums ? bytes.accumulator : bytes.element;
}

/// Returns core attention of one of the `tensor_size` ranks that share the model's heads.
inline AttentionShape attention_shape(const Model& model, std::int64_t tensor_size = 1,
                                      Dtype dtype = Dtype::float32) {
  const ElementBytes bytes = element_bytes(dtype);
  return {static_cast<int>(model.heads / tensor_size),
          static_cast<int>(model.kv_heads / tensor_size), static_cast<int>(model.head_dim()),
          bytes.element, bytes.accumulator};
}

struct Checkpoint {
  std::int64_t every = 0;  ///< steps; 0: none
  std::int64_t keep = 0;   ///< number of newest files that stay; 0: all
};

/// Losses of data.validation during training.
struct Validate {
  std::int64_t every = 0;  ///< steps; 0: none
  std::int64_t steps = 0;  ///< batches at most; 0: all of them
};

/// Activations that the backward pass recomputes: those of the feed-forward, of the attention
/// block, or of the whole layer.
enum class Recompute { none, mlp, attention, layer };
/// What waits in host memory between the passes.
enum class Offload { none, activations };

struct Run {
  std::int64_t steps = 20;
  DeviceKind device = DeviceKind::host;
  bool share_device = true;  ///< whether ranks may compute on one device
  Transport transport = Transport::automatic;
  Dtype dtype = Dtype::float32;
  Precision residual = Precision::sums;  ///< type of the residual stream and of its gradient
  Recompute recompute = Recompute::none;
  bool recompute_open = false;  ///< placement auto may choose `recompute`: see Parallel::open
  Offload offload = Offload::none;
  std::int64_t memory = 0;  ///< bytes that a rank may use; 0: no limit
  double timeout = 300;     ///< longest time without a completed operation, seconds; 0: no limit
  Validate validate;
  Checkpoint checkpoint;
  /// Whether steps are forward passes without updates: no key, cadenza evaluate sets it.
  bool evaluates = false;
};

struct Trace {
  bool events = true;
  bool memory = true;
};

/// The operations that a fault affects, by phase; recomputation belongs to `backward`.
enum class FaultPhase { all, forward, backward, optimizer };
enum class FaultWork { all, attention, dense };  ///< dense: projections, feed-forward, loss
/// A planted fault: on one rank some operations are slower, or the rank stops in one or before a
/// step, or its clock is wrong.
struct Fault {
  std::int64_t rank = 0;
  double speed = 1;    ///< share of the other ranks' speed
  double pause = 0;    ///< seconds of its stop, once a step in an operation that the seed chooses
  double core = 1;     ///< share of the time in which it has its core
  double between = 0;  ///< seconds of its stop before it begins a step
  double clock = 0;    ///< seconds by which its clock is ahead
  FaultPhase phase = FaultPhase::all;
  FaultWork work = FaultWork::all;
  std::vector<std::int64_t> steps;  ///< empty: every step
  /// Whether it changes operations, those of `phase` and `work`.
  bool is_of_operations() const { return speed < 1 || pause > 0 || core < 1; }
  friend bool operator==(const Fault&, const Fault&) = default;
};

/// Assumptions of a simulation about the cluster, beside the machine file.
struct Cluster {
  std::string machine;              ///< machine file; empty: nominal rates
  std::int64_t ranks_per_node = 0;  ///< 0: that of the machine file
  double bandwidth = 1;             ///< factor on the links between nodes
  Software software;                ///< that trains there
  double speed_spread = 0;  ///< standard deviation of the log of a rank's speed, fixed for a run
  double jitter = 0;        ///< standard deviation of the log of an operation's time
  std::vector<std::array<double, 2>> slow_ranks;     ///< rank, share of the other ranks' speed
  std::vector<std::array<double, 3>> slow_links;     ///< rank, rank, share of the bandwidth
  std::vector<std::array<double, 3>> slow_adapters;  ///< node, shares of its bandwidth out and in
  std::vector<Fault> faults;
  /// Whether any rank may differ from the others.
  bool varies() const {
    return speed_spread > 0 || jitter > 0 || !slow_ranks.empty() || !slow_links.empty() ||
           !slow_adapters.empty() || !faults.empty();
  }
  /// The cluster as planners know it: without differences between ranks and links.
  Cluster even() const {
    Cluster known;
    known.machine = machine;
    known.ranks_per_node = ranks_per_node;
    known.bandwidth = bandwidth;
    known.software = software;
    return known;
  }
};

struct Experiment {
  std::string name = "experiment";
  std::uint64_t seed = 1;
  Model model;
  Data data;
  Batch batch;
  Parallel parallel;
  Attention attention;
  Optimizer optimizer;
  Run run;
  Trace trace;
  Cluster cluster;

  /// Number of ranks: trainers first, then dedicated attention servers.
  std::int64_t ranks() const { return parallel.trainers() + attention.servers; }

  /// The type of the residual stream: run.residual, or what the program of cluster.software has.
  Precision residual() const {
    return cluster.software.residual == Precision::stored ? Precision::stored : run.residual;
  }

  /// parallel.schedule, with `automatic` resolved: phase_aligned where placement pools attention
  /// over stages of equally many layers in one chunk, or dedicated servers serve them; otherwise
  /// one_f_one_b, interleaved with more than one chunk. With one stage all schedules are the same.
  PipelineSchedule pipeline_schedule() const;
};

/// Descriptions of the files that an experiment names, by the key that names them, as files may
/// change under an experiment: {"data.path", "12 documents of 3456 tokens, lengths 00ab..."}
using FileContents = std::map<std::string, std::string>;

}  // namespace cadenza::config
