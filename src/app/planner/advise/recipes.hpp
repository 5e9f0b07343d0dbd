// SPDX-License-Identifier: Apache-2.0
// A layout in the words of a training stack: what to type there, and what it has no words for.
#pragma once

#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"

namespace cadenza::app {

struct Recipe {
  std::string stack;   ///< "Megatron-LM"
  std::string file;    ///< name of the file that holds `text`
  std::string text{};  ///< lines
  /// Lines: what of the layout the stack does not have, so that it would run another one.
  std::vector<std::string> missing{};
  /// Lines: what the stack does in a slightly different way.
  std::vector<std::string> notes{};
  bool same() const { return missing.empty(); }
};

inline constexpr const char* kOwnStack = "Cadenza";

/// The experiment for `cadenza train`, as its own program runs it, and how to submit it.
/// @param e  with a layout and a placement, like those below
Recipe cadenza_recipe(const config::Experiment& e);

/// Arguments of Megatron-LM's pretrain_gpt.py (megatron/training/arguments.py, August 2026).
/// @param sequence  tokens of a sequence, of which a microbatch has a whole number
Recipe megatron_recipe(const config::Experiment& e, std::int64_t sequence,
                       std::int64_t ranks_per_node);

/// The TOML of torchtitan up to v0.2.2 (torchtitan/config/job_config.py).
/// @param sequence  as above
Recipe torchtitan_recipe(const config::Experiment& e, std::int64_t sequence);

}  // namespace cadenza::app
