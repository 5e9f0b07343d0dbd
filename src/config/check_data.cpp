// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <optional>

#include "cadenza/config/limits.hpp"
#include "config/checker.hpp"
#include "config/words.hpp"

namespace cadenza::config {
namespace {

void check_tokens(const Checker& check, const Data& d, std::int64_t vocab) {
  check.require(d.document_end < vocab, "data.document_end",
                "found {}, outside the vocabulary; valid: an integer in [0, model.vocab = {})",
                d.document_end, vocab);
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
  const bool from_file =
      l.distribution == Distribution::histogram || l.distribution == Distribution::file;
  check.require(!from_file || !l.path.empty(), "data.lengths.path",
                "found nothing, but data.lengths.distribution = {} requires it; valid: a file of "
                "lengths",
                word(l.distribution));
  check.require(l.distribution != Distribution::constant || l.median == std::floor(l.median),
                "data.lengths.median",
                "found {}, but data.lengths.distribution = constant takes it as the length; valid: "
                "an integer",
                l.median);
}

void check_retrieval(const Checker& check, const Data& d, std::int64_t vocab) {
  constexpr std::int64_t kLeastVocabulary = 8;
  const Retrieval& r = d.retrieval;
  check.require(vocab >= kLeastVocabulary, "model.vocab",
                "found {}, but data.source = retrieval has keys and other words; valid: an integer "
                ">= {}",
                vocab, kLeastVocabulary);
  if (!r.tells_facts()) {
    check.require(r.answers <= vocab / 8, "data.retrieval.answers",
                  "found {}; valid: an integer in [1, {}], an eighth of model.vocab", r.answers,
                  vocab / 8);
    return;
  }
  const std::int64_t most = vocab / 4;
  check.require(r.facts <= most, "data.retrieval.facts",
                "found {}; valid: an integer in [1, {}], a quarter of model.vocab", r.facts, most);
  const std::int64_t together = r.facts * r.links();
  check.require(together <= kMaxFacts, "data.retrieval.facts",
                "found {} of {} facts each; valid: an integer in [1, {}], with data.retrieval.{}",
                r.facts, r.links(), kMaxFacts / r.links(),
                r.task == RetrievalTask::variables ? "hops" : "answers");
  check.require(
      r.task != RetrievalTask::variables || together <= most, "data.retrieval.hops",
      "found {}, with {} chains {} variables; valid: a number with which they are at most "
      "{}, a quarter of model.vocab",
      r.hops, r.facts, together, most);
  check.require(r.questions <= r.facts, "data.retrieval.questions",
                "found {}, more than data.retrieval.facts = {}; valid: an integer in [1, {}]",
                r.questions, r.facts, r.facts);
  check.require(r.depth_min <= r.depth_max, "data.retrieval.depth_min",
                "found {}, more than data.retrieval.depth_max = {}; valid: a number in [0, {}]",
                r.depth_min, r.depth_max, r.depth_max);
}

}  // namespace

void check_data(const Checker& check, const Data& d, const Model& m) {
  const bool made = d.source == Source::synthetic || d.source == Source::retrieval;
  check.require(made || !d.path.empty(), "data.path",
                "found nothing, but data.source = {} requires it; valid: files, folders or globs",
                word(d.source));
  check.require(made || d.weights.empty() || d.weights.size() == d.path.size(), "data.weights",
                "found {} weights with {} entries of data.path; valid: one for each, or []",
                d.weights.size(), d.path.size());
  const std::optional<double> share = held_out_share(d);
  check.require(!share || (*share > 0 && *share < 1), "data.validation",
                "found a share of {}; valid: above 0 and below 1, or files, folders or globs",
                share.value_or(0));
  check.require(share || d.validation.empty() || !made, "data.validation",
                "found files, but data.source = {} reads none; valid: a share such as 0.01",
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
  if (made) check_lengths(check, d);
  if (d.source == Source::retrieval) check_retrieval(check, d, m.vocab);
}

}  // namespace cadenza::config
