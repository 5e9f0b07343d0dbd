// SPDX-License-Identifier: Apache-2.0
// Changes of HDF5 files: of bytes, and of objects, which bytes alone seldom reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cadenza::fuzz {

std::size_t mutate_attention(std::uint8_t* data, std::size_t size, std::size_t capacity,
                             unsigned seed);
std::size_t mutate_index(std::uint8_t* data, std::size_t size, std::size_t capacity, unsigned seed);
std::size_t mutate_checkpoint(std::uint8_t* data, std::size_t size, std::size_t capacity,
                              unsigned seed);

/// Sound files: q, k, v, dout and document_lengths; an index of their documents; a checkpoint of
/// checkpoint_model().
void write_attention_input(const std::string& path);
void write_index(const std::string& path);
void write_checkpoint(const std::string& path);

}  // namespace cadenza::fuzz
