// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"

#include <algorithm>
#include <cmath>

#include "cadenza/config/load.hpp"
#include "words.hpp"

namespace cadenza::config {
namespace {

// The byte tokenizer's vocabulary: 256 bytes and begin, end, padding.
constexpr std::int64_t kByteVocabulary = 259;

class Checker {
 public:
  explicit Checker(const Value& root) : root_(root) {}

  template <typename... Args>
  void require(bool holds, const char* path, fmt::format_string<Args...> format,
               Args&&... args) const {
    if (holds) return;
    fail_at(place_of(root_, path), path, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const Value& root_;
};

void check_model(const Checker& check, const Model& m) {
  check.require(m.d_model % m.heads == 0, "model.heads",
                "found {}, which does not divide model.d_model = {}; valid: a divisor of it",
                m.heads, m.d_model);
  check.require(m.head_dim() % 2 == 0, "model.heads",
                "found {}, so that a head has model.d_model / model.heads = {} dimensions; valid: "
                "an even number of them (rotary embedding turns pairs)",
                m.heads, m.head_dim());
  check.require(m.heads % m.kv_heads == 0, "model.kv_heads",
                "found {}, which does not divide model.heads = {}; valid: a divisor of it",
                m.kv_heads, m.heads);
}

void check_parallel(const Checker& check, const Parallel& p) {
  constexpr auto kOnlyOne = "found {}; valid: 1 (this version runs data parallelism)";
  check.require(p.pipeline == 1, "parallel.pipeline", kOnlyOne, p.pipeline);
  check.require(p.tensor == 1, "parallel.tensor", kOnlyOne, p.tensor);
  check.require(p.context == 1, "parallel.context", kOnlyOne, p.context);
}

void check_batch(const Checker& check, const Batch& b, const Parallel& p) {
  const std::int64_t unit = b.microbatch * p.data;
  check.require(b.tokens >= b.microbatch, "batch.tokens",
                "found {}, a batch smaller than one microbatch (batch.microbatch = {}); valid: a "
                "multiple of batch.microbatch x parallel.data = {}",
                b.tokens, b.microbatch, unit);
  check.require(b.tokens % unit == 0, "batch.tokens",
                "found {}, no multiple of batch.microbatch x parallel.data = {} x {} = {}; valid: "
                "e.g. {}",
                b.tokens, b.microbatch, p.data, unit, (b.tokens / unit + 1) * unit);
}

void check_tokens(const Checker& check, const Data& d, std::int64_t vocab) {
  const std::int64_t largest = d.dtype == TokenType::uint16 ? 0xffff : 0xffffffff;
  check.require(d.document_end >= 0, "data.document_end",
                "found nothing, but data.source = tokens requires it (the token that ends a "
                "document); valid: an integer in [0, model.vocab = {})",
                vocab);
  check.require(d.document_end < vocab, "data.document_end",
                "found {}, outside the vocabulary; valid: an integer in [0, model.vocab = {})",
                d.document_end, vocab);
  check.require(d.document_end <= largest, "data.document_end",
                "found {}, more than data.dtype = {} holds; valid: an integer in [0, {}]",
                d.document_end, word(d.dtype), largest);
}

void check_lengths(const Checker& check, const Data& d) {
  const Lengths& l = d.lengths;
  const std::int64_t max = l.max == 0 ? d.max_document : l.max;
  check.require(l.min <= max, "data.lengths.min",
                "found {}, more than {} = {}; valid: an integer in [1, {}]", l.min,
                l.max == 0 ? "data.max_document" : "data.lengths.max", max, max);
  check.require(l.distribution != Distribution::list || !l.values.empty(), "data.lengths.values",
                "found an empty list, but data.lengths.distribution = list takes its lengths "
                "there; valid: one length or more");
  check.require(l.distribution != Distribution::constant || l.median == std::floor(l.median),
                "data.lengths.median",
                "found {}, but with data.lengths.distribution = constant it is the length; valid: "
                "an integer",
                l.median);
}

void check_data(const Checker& check, const Data& d, const Model& m) {
  check.require(d.source == Source::synthetic || !d.path.empty(), "data.path",
                "found nothing, but data.source = {} requires it; valid: files, folders or globs",
                word(d.source));
  check.require(d.max_document >= 2, "data.max_document",
                "found {}: documents of one token have no next token to learn; valid: 0 "
                "(batch.microbatch) or an integer >= 2",
                d.max_document);
  if (d.source == Source::text) {
    check.require(m.vocab >= kByteVocabulary, "model.vocab",
                  "found {}, but data.tokenizer = byte has {} tokens; valid: an integer >= {}",
                  m.vocab, kByteVocabulary, kByteVocabulary);
  }
  if (d.source == Source::tokens) check_tokens(check, d, m.vocab);
  if (d.source == Source::synthetic) check_lengths(check, d);
}

}  // namespace

void check_consistency(const Experiment& experiment, const Value& root) {
  const Checker check(root);
  check.require(experiment.name.find('/') == std::string::npos, "name",
                "found {}; valid: a name without '/' (the run goes to runs/<name>; --output names "
                "any folder)",
                experiment.name);
  check_model(check, experiment.model);
  check_parallel(check, experiment.parallel);
  check_batch(check, experiment.batch, experiment.parallel);
  check_data(check, experiment.data, experiment.model);
  check.require(experiment.optimizer.betas.size() == 2, "optimizer.betas",
                "found {} values; valid: two, e.g. [0.9, 0.95]", experiment.optimizer.betas.size());
}

void check_ranks(const Experiment& experiment, int ranks) {
  if (experiment.ranks() == ranks) return;
  const Parallel& p = experiment.parallel;
  const std::int64_t servers = experiment.attention.servers;
  const std::string trainers =
      fmt::format("data {} × pipeline {} × tensor {} × context {} = {} trainer{}", p.data,
                  p.pipeline, p.tensor, p.context, p.trainers(), p.trainers() == 1 ? "" : "s");
  const std::string dedicated = servers == 0 ? ""
                                             : fmt::format(", {} dedicated attention server{}",
                                                           servers, servers == 1 ? "" : "s");
  fail(ExitCode::usage,
       "this experiment needs {} rank{} ({}{}); found {}: start it with mpirun -n {}",
       experiment.ranks(), experiment.ranks() == 1 ? "" : "s", trainers, dedicated, ranks,
       experiment.ranks());
}

}  // namespace cadenza::config
