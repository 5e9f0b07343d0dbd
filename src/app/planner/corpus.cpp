// SPDX-License-Identifier: Apache-2.0
#include "app/planner/corpus.hpp"

#include <optional>

#include "app/planner/terminal.hpp"

namespace cadenza::app {

std::unique_ptr<data::Corpus> open_corpus(const config::Experiment& experiment, bool speaks,
                                          data::Part part) {
  std::optional<Progress> progress;
  const auto show = [&](std::int64_t done, std::int64_t all) {
    if (!progress) progress.emplace(speaks, all, "file", 0, stderr);
    if (done > 0) progress->show(done, "scanned for documents, once");
  };
  auto corpus =
      data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed, show, part);
  if (progress) progress->finish();
  return corpus;
}

}  // namespace cadenza::app
