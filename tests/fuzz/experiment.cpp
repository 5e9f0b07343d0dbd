// SPDX-License-Identifier: Apache-2.0
// An experiment's YAML, followed by lines "--set key.path=value"; the config.json of a model. What
// is accepted must come back the same from its own YAML; where it is small, its corpus, plan,
// programs and simulated step are made too.
#include <algorithm>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "readers.hpp"
#include "small.hpp"

namespace cadenza::fuzz {
namespace {

struct Arguments {
  std::string text;
  std::vector<std::string> overrides;
};

Arguments split(std::string_view input) {
  constexpr std::string_view kSet = "\n--set ";
  Arguments arguments;
  std::size_t end = std::min(input.find(kSet), input.size());
  arguments.text = input.substr(0, end);
  while (end < input.size()) {
    const std::size_t begin = end + kSet.size();
    end = std::min(input.find(kSet, begin), input.size());
    arguments.overrides.emplace_back(input.substr(begin, end - begin));
  }
  return arguments;
}

void check_round_trip(const config::Experiment& experiment) {
  const std::string text = config::to_yaml(experiment);
  std::string again;
  try {
    again = config::to_yaml(config::parse_experiment(text, "again.yaml", {}));
  } catch (const Error& error) {
    finding(fmt::format("accepted, but its own YAML is refused: {}\n{}", error.what(), text));
  }
  require(again == text, "comes back changed:\n{}\n{}", text, again);
}

/// The run goes into a folder of that name.
void check_name(const std::string& name) {
  const auto harmful = [](char c) {
    return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  };
  require(name != "." && name != ".." && std::ranges::none_of(name, harmful),
          "accepted the name {}", name);
}

}  // namespace

void read_experiment(Bytes input) {
  const std::string all = text_of(input);
  const Arguments arguments = split(all);
  const config::Experiment experiment =
      config::parse_experiment(arguments.text, "experiment.yaml", arguments.overrides, nullptr,
                               config::HeadsOf::model, small_model);
  check_name(experiment.name);
  check_round_trip(experiment);
  go_on(experiment);
}

void read_model(Bytes input) {
  const auto read = [&](const std::string&, const std::string&) { return text_of(input); };
  const config::Experiment experiment = config::parse_experiment(
      "model: {config: model.json}\n"
      "data: {source: synthetic, documents: 20, max_document: 256, lengths: {median: 60}}\n"
      "batch: {tokens: 1024, microbatch: 256}\n",
      "experiment.yaml", {}, nullptr, config::HeadsOf::model, read);
  check_round_trip(experiment);
  go_on(experiment);
}

}  // namespace cadenza::fuzz
