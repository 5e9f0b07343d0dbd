// SPDX-License-Identifier: Apache-2.0
// Keys whose values come from another file that the experiment names.
#pragma once

#include "cadenza/config/load.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// Replaces model.config, where `root` has it, by the keys of `model` that its file gives and that
/// `root` lacks. Their places are lines of that file. A written model.rope.scaling.kind keeps all
/// scaling of the file away, as its numbers belong to another kind. A window of all layers becomes
/// the kind of attention, unless `root` gives one.
/// @throws Error(usage): model.config is no text; a file that is broken or describes a model that
/// Cadenza does not have
void resolve_model_config(Value& root, const ReadFile& read);

/// Replaces cluster.software (a word or a path) or its key `file` by the keys that the file of that
/// stack gives and that `root` lacks.
/// @throws Error(usage): an unknown word; a file that is broken, has an unknown key, or lacks its
/// name or source
void resolve_software(Value& root, const ReadFile& read);

/// Both.
void resolve_files(Value& root, const ReadFile& read);

}  // namespace cadenza::config
