// SPDX-License-Identifier: Apache-2.0
// The functions behind the targets.
#pragma once

#include "target.hpp"

namespace cadenza::fuzz {

void read_experiment(Bytes input);
void read_model(Bytes input);
void read_sweep(Bytes input);
void read_machine(Bytes input);
void read_budgets(Bytes input);
void read_tokens(Bytes input);  ///< behind a first byte: bit 0 uint32, bit 1 a small vocabulary
void read_npy(Bytes input);
void read_megatron(Bytes input);  ///< behind a first byte: so many bytes of .bin, then the .idx
void read_lengths(Bytes input);
void read_paths(Bytes input);
void read_safetensors(Bytes input);
void read_attention(Bytes input);
void read_index(Bytes input);
void read_checkpoint(Bytes input);

}  // namespace cadenza::fuzz
