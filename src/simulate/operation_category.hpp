// SPDX-License-Identifier: Apache-2.0
// What kind of computing an operation is: in traces, in sums of time, where faults are planted.
#pragma once

#include "cadenza/program/program.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::simulate {

/// Of what the rank itself does in it, messages and waits aside.
trace::Category category_of(program::Operation operation);

}  // namespace cadenza::simulate
