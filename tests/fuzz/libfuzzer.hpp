// SPDX-License-Identifier: Apache-2.0
// The functions that libFuzzer calls, and the one of its own that they call.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t capacity,
                                    unsigned seed);

/// Changes bytes of `data`; returns their new number.
std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t capacity);

}  // extern "C"
