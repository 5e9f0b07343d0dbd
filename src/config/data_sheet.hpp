// SPDX-License-Identifier: Apache-2.0
// Rates of a machine of which only the data sheet is known.
#pragma once

#include "cadenza/config/machine.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// Whether the file gives a value at "key", "block.key" or deeper.
bool gives(const Value& root, const std::string& path);

/// Whether the machine's file has numbers of a data sheet.
bool has_sheet(const Machine& machine);

/// Sets every rate that the file leaves out to a share of the sheet's number for it, if the file
/// has any.
/// @throws Error(usage) if the block lacks a number
void complete_from_sheet(const Value& root, Machine& machine);

}  // namespace cadenza::config
