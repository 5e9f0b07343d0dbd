// SPDX-License-Identifier: Apache-2.0
// Which of a machine's element-wise rates an operation has.
#pragma once

#include "cadenza/config/machine.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program {

/// The machine's rate for the element-wise part of an operation, bytes per second.
double element_wise_rate(config::ElementWise rates, const Step& step);

/// The operation's own rate; null where it has none.
double* rate_of(config::ElementWise& rates, const Step& step);

}  // namespace cadenza::program
