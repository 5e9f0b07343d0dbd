// SPDX-License-Identifier: Apache-2.0
// Every knob of an experiment, one struct per YAML block; fields and YAML keys are the same word.
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
#include "cadenza/config/attention_kind.hpp"
#include "cadenza/config/placement_kind.hpp"

namespace cadenza::config {

/// How rotary frequencies are changed for documents that are longer than those of training.
enum class RopeScalingKind { none, linear, yarn, llama3 };
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;                  ///< how much longer
  std::int64_t original_context = 0;  ///< yarn, llama3: tokens of training
  double beta_fast = 32;              ///< yarn: pairs that turn more often in training stay
  double beta_slow = 1;               ///< yarn: those that turn less often are divided by `factor`
  double mscale = 0;                  ///< yarn: see docs/attention.md; 0: not given
  double mscale_all_dim = 0;          ///< yarn; 0: not given
  double low_frequency = 1;           ///< llama3: as beta_slow
  double high_frequency = 4;          ///< llama3: as beta_fast
};

struct Rope {
  double theta = 10000.0;
  RopeScaling scaling;
};

struct Model {
  std::int64_t layers = 0;
  std::int64_t d_model = 0;
  std::int64_t heads = 0;     ///< query heads; d_model is divisible by it, head_dim is even
  std::int64_t kv_heads = 0;  ///< divides heads; default: heads
  std::int64_t ffn = 0;       ///< width of the SwiGLU branch
  std::int64_t vocab = 0;
  double norm_eps = 1e-5;
  Rope rope;
  bool tie_embeddings = false;

  std::int64_t head_dim() const { return d_model / heads; }
};

enum class Source { text, tokens, synthetic, retrieval };
enum class Tokenizer { byte };
enum class TokenType { uint16, uint32 };
enum class Distribution { constant, uniform, lognormal, pareto, list, histogram, file };
/// How documents are drawn from a histogram; see docs/data.md.
enum class DrawRule { independent, pretrain, prolong };

/// Lengths of synthetic documents, in tokens; drawn ones are clamped to [min, max].
struct Lengths {
  Distribution distribution = Distribution::lognormal;
  std::int64_t min = 2;
  std::int64_t max = 0;              ///< 0: data.max_document
  double median = 1024;              ///< lognormal: median; constant: the length
  double sigma = 1.0;                ///< lognormal: standard deviation of log length
  double alpha = 1.2;                ///< pareto: tail exponent; `min` is its scale
  std::vector<std::int64_t> values;  ///< list: used in order, again and again
  std::string path;  ///< histogram: JSON list of [length, count]; file: lengths in order
  DrawRule rule = DrawRule::independent;  ///< histogram
  double stretch = 1;                     ///< histogram: factor on the lengths that are drawn
};

/// Documents of source retrieval.
struct Retrieval {
  std::int64_t facts = 4;      ///< in a document
  std::int64_t questions = 1;  ///< at its end, each for another fact
  double depth_min = 0;        ///< of a fact: the share of the filler that stands before it
  double depth_max = 1;
  std::int64_t phrase = 16;  ///< tokens at most of what the filler repeats, and at least half
};

struct Data {
  Source source = Source::text;
  std::vector<std::string> path;  ///< text: files, folders, globs; tokens: .bin or .npy files
  Tokenizer tokenizer = Tokenizer::byte;
  std::int64_t max_document = 0;  ///< tokens; longer documents are cut; 0: batch.microbatch
  bool shuffle = false;
  TokenType dtype = TokenType::uint16;  ///< tokens
  std::int64_t document_end = -1;       ///< tokens: the token that ends a document (required there)
  std::int64_t documents = 1024;        ///< synthetic, retrieval: documents in the corpus
  Lengths lengths;                      ///< synthetic, retrieval
  Retrieval retrieval;
};

enum class Packing { fixed, balanced, pooled };

struct Batch {
  std::int64_t tokens = 0;      ///< per step over all ranks
  std::int64_t microbatch = 0;  ///< tokens per microbatch of one data-parallel rank
  Packing packing = Packing::fixed;
  /// balanced, pooled: a microbatch holds at most this many times batch.microbatch tokens.
  double longest = 1.25;
  /// balanced, pooled: length at which a document's attention costs as much as its other layers
  /// (attention-linear break-even); 0: from the model's shape.
  std::int64_t break_even = 0;
  /// balanced: documents longer than outliers[i] wait in queue i until there is one for every
  /// microbatch of a step.
  std::vector<std::int64_t> outliers;
};

/// The largest position of a query in dual chunk attention: attention.chunk, as in Megatron-LM, or
/// one less, as in the paper.
enum class ChunkCap { megatron, paper };

/// Order of a pipeline's forward and backward passes; `automatic`: phase_aligned where placement
/// pools attention over stages, otherwise one_f_one_b, interleaved with more than one chunk.
enum class PipelineSchedule { automatic, one_f_one_b, interleaved, phase_aligned };
/// What every data-parallel rank keeps whole; `optimizer` is ZeRO's stage 1.
enum class Shard { none, optimizer };

struct Parallel {
  std::int64_t data = 1;
  std::int64_t pipeline = 1;
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  PipelineSchedule schedule = PipelineSchedule::automatic;
  std::int64_t chunks = 1;  ///< interleaved: groups of layers per pipeline rank
  Shard shard = Shard::none;
  /// With placement auto: keys that it may choose, as the file leaves them out or says `auto`.
  struct Open {
    bool pipeline = false;
    bool tensor = false;
    bool context = false;
    bool shard = false;
  } open;

  std::int64_t trainers() const { return data * pipeline * tensor * context; }
  /// What `automatic` stands for. With one stage all schedules are the same.
  PipelineSchedule pipeline_schedule(PlacementKind placement) const {
    if (schedule != PipelineSchedule::automatic) return schedule;
    if (disaggregates(placement)) return PipelineSchedule::phase_aligned;
    return chunks > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
  }
};

/// `automatic`: once for a run, whichever is predicted to be faster.
enum class Overlap { none, ping_pong, automatic };
/// How a context group shares tokens where the placement leaves it open; see Shares.
enum class Sharding { contiguous, zigzag };
/// What is cut into a context group's chunks: every document, the whole microbatch, or whichever
/// is predicted to be faster for the microbatch (WLB-LLM).
enum class ShardUnit { document, sequence, predicted };
/// What a move of CAD is judged by; see docs/plan.md.
enum class Priority { resident, paper, public_code };
enum class Bound { two_sided, one_sided };
/// What a server does with Q, K, V between the passes.
enum class Inputs { resend, keep };
/// all_gather: the keys that a rank gets: those that its queries see, or all of its group.
enum class Gather { seen, all };

/// vertical_slash: what a head may keep; see SparseRule.
struct HeadBudget {
  std::int64_t columns = 0;
  std::int64_t slashes = 0;
  double top_p = 0;
  friend bool operator==(const HeadBudget&, const HeadBudget&) = default;
};

/// Kinds that are sparse; see SparseRule.
struct SparseAttention {
  std::optional<std::int64_t> block;  ///< absent: SparseTraits::block
  std::int64_t columns = 1024;
  std::int64_t slashes = 256;
  double top_p = 0;
  std::int64_t sinks = 16;
  std::int64_t window = 32;
  std::int64_t dense_below = 4096;
  std::vector<std::int64_t> dense_layers;  ///< whose attention stays dense
  std::int64_t dense_steps = 0;            ///< the first steps, in which all layers are dense
  std::int64_t stride = 16;                ///< xattention
  double threshold = 0.9;                  ///< xattention
  std::string budgets;                     ///< a file of them; empty: all heads have the above
  /// By layer and query head, what that file says; heads behind the last have the above.
  std::vector<std::vector<HeadBudget>> heads;
  friend bool operator==(const SparseAttention&, const SparseAttention&) = default;
};

struct Attention {
  AttentionKind kind = AttentionKind::full;
  std::int64_t window = 0;            ///< window: keys that a query sees, its own among them
  std::int64_t sinks = 0;             ///< window: first tokens of a document that all see
  std::int64_t prefix = 0;            ///< prefix: first tokens of a document that see each other
  std::int64_t chunk = 8192;          ///< dual_chunk: positions that the model was trained with
  std::int64_t local = 1024;          ///< dual_chunk: of them, those that overlap: the stride is
                                      ///< chunk - local
  ChunkCap cap = ChunkCap::megatron;  ///< dual_chunk
  SparseAttention sparse;             ///< kinds that are sparse
  PlacementKind placement = PlacementKind::cad;
  Sharding sharding = Sharding::zigzag;
  ShardUnit shard_unit = ShardUnit::document;
  std::int64_t head_parallel = 1;  ///< ulysses_ring: ranks of a context group that split the heads
  std::int64_t inner_ring = 1;     ///< double_ring: ranks of an inner ring, a node
  std::int64_t servers = 0;        ///< 0: in_place (every trainer serves); N: dedicated ranks
  bool mixed = false;              ///< with dedicated ranks: trainers serve as well
  /// cad: rank, its speed as planned for, in percent of the others'.
  std::vector<std::array<double, 2>> capacity;
  std::int64_t block = 128;  ///< tokens, the smallest piece that is placed on its own
  /// cad: allowed deviation of a server's cost from the mean; without a value (`auto`): in each
  /// tick the one that is predicted to be fastest.
  std::optional<double> tolerance;
  Bound bound = Bound::two_sided;
  Priority priority = Priority::resident;
  bool split_keys = true;  ///< cad: cut along keys too where that lowers the plan's cost
  Inputs inputs = Inputs::resend;
  Gather gather = Gather::seen;
  Overlap overlap = Overlap::automatic;
  AttentionKernel kernel = AttentionKernel::automatic;  ///< what computes it on a host

  /// Which keys a query sees, and at which positions.
  Mask mask() const;
  /// Of which pairs of the mask only some are computed: with the largest budgets of all heads.
  SparseRule sparse_rule() const;
  /// Of a head of the model.
  SparseRule sparse_rule(std::int64_t layer, std::int64_t head) const;
  /// How a context group shares tokens, none of them `given`.
  Shares shares() const {
    const Shares own = traits_of(placement).shares;
    if (own != Shares::given) return own;
    return sharding == Sharding::zigzag ? Shares::zigzag : Shares::contiguous;
  }
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
/// What carries messages between ranks: NCCL (its emulation where the build found none), MPI given
/// the tensors' memory, or MPI given copies.
enum class Transport { automatic, nccl, mpi, staged };
enum class Dtype { bfloat16, float32, float64 };

/// Bytes of a number as it is stored, and of one that adds up.
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

struct Checkpoint {
  std::int64_t every = 0;  ///< steps; 0: none
  std::int64_t keep = 0;   ///< newest files that stay; 0: all
};

/// Activations that the backward pass computes again instead of keeping them: of the feed-forward,
/// of the attention block, or of the whole layer.
enum class Recompute { none, mlp, attention, layer };

struct Run {
  std::int64_t steps = 20;
  DeviceKind device = DeviceKind::host;
  bool share_device = true;  ///< whether ranks may compute on one device
  Transport transport = Transport::automatic;
  Dtype dtype = Dtype::float32;
  Recompute recompute = Recompute::none;
  bool recompute_open = false;  ///< as Parallel::open
  std::int64_t memory = 0;      ///< bytes a rank may use; 0: no limit
  double timeout = 300;  ///< seconds in which no operation completes on any rank; 0: no limit
  Checkpoint checkpoint;
};

struct Trace {
  bool events = true;
  bool memory = true;
};

/// What goes wrong on one rank, in some operations: they are slower, or the rank stops in one.
enum class FaultPhase { all, forward, backward, optimizer };  ///< recomputation: backward
enum class FaultWork { all, attention, dense };  ///< dense: projections, feed-forward, loss
struct Fault {
  std::int64_t rank = 0;
  double speed = 1;  ///< share of the others'
  double pause = 0;  ///< seconds for which it stops once a step, in an operation given by the seed
  FaultPhase phase = FaultPhase::all;
  FaultWork work = FaultWork::all;
  std::vector<std::int64_t> steps;  ///< empty: every step
  friend bool operator==(const Fault&, const Fault&) = default;
};

/// What a simulation assumes of the cluster beside the machine file.
struct Cluster {
  std::string machine;              ///< machine file; empty: nominal rates
  std::int64_t ranks_per_node = 0;  ///< 0: the machine file's
  double bandwidth = 1;             ///< factor on the links between nodes
  double speed_spread = 0;  ///< standard deviation of the log of a rank's speed, fixed for a run
  double jitter = 0;        ///< standard deviation of the log of an operation's time
  std::vector<std::array<double, 2>> slow_ranks;  ///< rank, its speed as a share of the others'
  std::vector<std::array<double, 3>> slow_links;  ///< rank, rank, share of the bandwidth
  std::vector<Fault> faults;
  /// Whether any rank may differ from the others.
  bool varies() const {
    return speed_spread > 0 || jitter > 0 || !slow_ranks.empty() || !slow_links.empty() ||
           !faults.empty();
  }
  /// Without what makes ranks and links differ: what planners know.
  Cluster even() const {
    Cluster known;
    known.machine = machine;
    known.ranks_per_node = ranks_per_node;
    known.bandwidth = bandwidth;
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

  /// Ranks the experiment runs on: trainers first, dedicated attention servers after them.
  std::int64_t ranks() const { return parallel.trainers() + attention.servers; }
};

/// What the files held that an experiment names, by the key that names them: they may change while
/// the experiment stays the same. {"data.path", "12 documents of 3456 tokens, lengths 00ab..."}
using FileContents = std::map<std::string, std::string>;

}  // namespace cadenza::config
