// SPDX-License-Identifier: Apache-2.0
// Rates of a machine of which only the data sheet is known.
#pragma once

#include "cadenza/config/machine.hpp"
#include "config/value.hpp"

namespace cadenza::config {

/// Whether the machine's file has numbers of a data sheet.
bool has_sheet(const Machine& machine);

/// Sets every rate that the file leaves out to a share of the sheet's number for it.
/// @pre has_sheet()
/// @throws Error(usage) if the block lacks a number
void complete_from_sheet(const Value& root, Machine& machine);

}  // namespace cadenza::config
