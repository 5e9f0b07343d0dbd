// SPDX-License-Identifier: Apache-2.0
#include "model/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>

#include "cadenza/config/load.hpp"

namespace cadenza::model {
namespace {

using Settings = std::map<std::string, std::string>;

constexpr std::string_view kModel = "model.";
constexpr std::array<std::string_view, 4> kBlocks = {kModel, "data.", "batch.", "optimizer."};

// These change when a run continues with longer documents.
constexpr std::string_view kScaling = "model.rope.scaling.";

constexpr std::string_view kKind = "attention.kind";
constexpr std::array<std::string_view, 7> kOfKind = {
    "attention.layers", "attention.window", "attention.sinks", "attention.prefix",
    "attention.chunk",  "attention.local",  "attention.cap"};

constexpr std::string_view kSparse = "attention.sparse.";

constexpr std::string_view kCapacity = "attention.capacity";

bool decides(const std::string& key) {
  return key == "seed" || key == kKind || key == "run.steps" ||
         std::ranges::any_of(kBlocks,
                             [&](std::string_view block) { return key.starts_with(block); });
}

Settings stored_settings(const std::string& yaml, const std::string& path) {
  try {
    return config::settings(yaml, path);
  } catch (const Error& error) {
    fail(ExitCode::data, "{}: holds no experiment: {}", path, error.what());
  }
}

Settings settings_of(const config::Experiment& experiment) {
  return config::settings(config::to_yaml(experiment), "");
}

std::int64_t integer_in(const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  std::int64_t value = 0;
  if (found == settings.end()) return value;
  const std::string& text = found->second;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Writes the width of heads where only the other side does: both ways say the same model.
void resolve_head_dim(Settings& settings, const Settings& other) {
  const std::string key = "model.head_dim";
  const std::int64_t heads = integer_in(settings, "model.heads");
  if (heads == 0 || integer_in(settings, key) > 0 || integer_in(other, key) == 0) return;
  settings[key] = fmt::format("{}", integer_in(settings, "model.d_model") / heads);
}

std::string value_in(const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? "" : found->second;
}

}  // namespace

std::vector<Difference> compare(const std::string& stored, const std::string& path,
                                const config::Experiment& asked) {
  if (stored == config::to_yaml(asked)) return {};
  Settings theirs = stored_settings(stored, path);
  Settings ours = settings_of(asked);
  resolve_head_dim(theirs, ours);
  resolve_head_dim(ours, theirs);
  const Settings defaults = settings_of({});
  Settings keys = ours;
  keys.insert(theirs.begin(), theirs.end());
  const std::string kind(kKind);
  // Balanced packing gives replicas with slow ranks other documents, so batches depend on the
  // capacity.
  const bool packs_by_capacity = value_in(ours, "batch.packing") == "balanced";
  const bool same_kind = value_in(theirs, kind) == value_in(ours, kind);
  std::vector<Difference> found;
  for (const auto& [key, value] : keys) {
    // Keys of an attention kind are not compared if the kinds differ or lack the key. Older files
    // have an unused `attention.window`.
    const bool of_kind =
        std::ranges::find(kOfKind, key) != kOfKind.end() || key.starts_with(kSparse);
    const bool packs = packs_by_capacity && key == kCapacity;
    if (of_kind ? !same_kind : !decides(key) && !packs) continue;
    if (value_in(theirs.contains(key) ? theirs : defaults, key) != value_in(ours, key)) {
      found.push_back({key, value_in(theirs, key), value_in(ours, key)});
    }
  }
  return found;
}

std::vector<Difference> compare(const std::string& stored, const config::FileContents& asked,
                                std::span<const Difference> changed) {
  std::vector<Difference> found;
  for (const auto& [key, text] : asked) {
    const std::string block = key.substr(0, key.find('.') + 1);  // "data."
    // Without data.max_document, the microbatch cuts documents.
    const bool expected = std::ranges::any_of(changed, [&](const Difference& d) {
      return d.key.starts_with(block) || d.key == "seed" || d.key == "batch.microbatch";
    });
    const std::string begin = key + ": ";
    const std::size_t line = ("\n" + stored).find("\n" + begin);
    if (expected || line == std::string::npos) continue;
    const std::string_view rest = std::string_view(stored).substr(line + begin.size());
    const std::string theirs(rest.substr(0, rest.find('\n')));
    if (theirs != text) found.push_back({key, theirs, text});
  }
  return found;
}

bool is_of_model(const std::string& key) {
  return key.starts_with(kModel) && !key.starts_with(kScaling);
}

}  // namespace cadenza::model
