// SPDX-License-Identifier: Apache-2.0
#include "app/planner/advise/question.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "app/planner/experiment_file.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

constexpr std::int64_t kTokensPerDevice = 16384;
/// Drawn from a histogram: enough for all steps that are looked at on thousands of devices.
constexpr std::int64_t kDocuments = 200000;

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return path.ends_with(end); });
}

/// The path of an input that is named by a word.
std::string named(const char* option, const std::string& text, const std::string& folder,
                  std::string_view extension) {
  const bool path = text.find('/') != std::string::npos || text.ends_with(extension);
  if (path) return text;
  const std::vector<std::string> known = input_names(folder);
  if (known.empty()) {
    fail(ExitCode::usage,
         "{}: found '{}', but no folder inputs/{} is here or with the program; valid: the path of "
         "a {} file, or start cadenza where inputs/ is",
         option, printable(text), folder, extension);
  }
  if (std::ranges::find(known, text) == known.end()) {
    fail(ExitCode::usage, "{}: found '{}'{}; valid: {}, or the path of a {} file", option,
         printable(text), nearest_hint(text, known), fmt::join(known, ", "), extension);
  }
  return fmt::format("inputs/{}/{}{}", folder, text, extension);
}

/// As YAML.
std::string as_yaml(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("''") : std::string(1, c);
  return result + "'";
}

/// The block `data`, by the kind of file.
std::string data_of(const Question& question) {
  const std::string& lengths = question.lengths;
  const std::string longest = fmt::format("max_document: {}", question.sequence);
  if (ends_with_any(lengths, {".bin", ".npy", ".idx"})) {
    return fmt::format("{{source: tokens, path: {}, shuffle: true, {}}}", as_yaml(lengths),
                       longest);
  }
  if (ends_with_any(lengths, {".txt"})) {
    return fmt::format("{{source: synthetic, {}, lengths: {{distribution: file, path: {}}}}}",
                       longest, as_yaml(lengths));
  }
  return fmt::format(
      "{{source: synthetic, documents: {}, {}, lengths: {{distribution: histogram, path: {}}}}}",
      kDocuments, longest, as_yaml(named("--lengths", lengths, "lengths", ".json")));
}

std::int64_t tokens_of(const Question& question) {
  if (question.tokens > 0) return question.tokens;
  const std::int64_t wanted = question.devices * kTokensPerDevice;
  return std::max<std::int64_t>(1, wanted / question.sequence) * question.sequence;
}

}  // namespace

config::Experiment experiment_of(const Question& question,
                                 const std::vector<std::string>& overrides) {
  const std::int64_t tensor = std::max<std::int64_t>(1, question.tensor);
  if (question.devices % tensor != 0) {
    fail(ExitCode::usage, "--tensor: found {} with {} devices; valid: a divisor of the devices",
         tensor, question.devices);
  }
  config::Cluster cluster;
  cluster.machine = named("--machine", question.machine, "machines", ".yaml");
  const std::string text = fmt::format(
      "name: advised\n"
      "model: {{config: {}}}\n"
      "data: {}\n"
      "batch: {{tokens: {}, microbatch: auto}}\n"
      "parallel: {{data: {}, tensor: {}}}\n"
      "attention: {{placement: auto}}\n"
      "run: {{dtype: {}}}\n"
      "cluster: {{machine: {}, software: {}}}\n",
      as_yaml(named("--model", question.model, "models", ".json")), data_of(question),
      tokens_of(question), question.devices / tensor,
      question.tensor > 0 ? fmt::format("{}", tensor) : "auto",
      config::word_of(load_machine(cluster).dtype), as_yaml(cluster.machine),
      as_yaml(question.software));
  const config::Experiment e = config::parse_experiment(text, "cadenza advise", overrides);
  if (e.attention.placement != config::PlacementKind::automatic) {
    fail(ExitCode::usage,
         "--set attention.placement: found {}; valid: auto, as advise searches the placement "
         "(cadenza simulate predicts a single one)",
         config::word_of(e.attention.placement));
  }
  if (e.ranks() != question.devices) {
    fail(ExitCode::usage,
         "--set: found settings that give {} devices, and --devices {}; valid: --tensor for tensor "
         "groups, or parallel.data such that all degrees give the devices",
         e.ranks(), question.devices);
  }
  return shown(e);
}

std::int64_t sequence_of(const Question& question, const config::Experiment& asked) {
  return std::gcd(question.sequence, asked.batch.microbatch);
}

}  // namespace cadenza::app
