// SPDX-License-Identifier: Apache-2.0
// Matrix products, through the call that the model's layers make.
#pragma once

#include "cadenza/comm/communicator.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::app {

/// Seconds of the product. Collective.
template <typename Real>
double product_seconds(comm::Communicator& world, const program::Product& product);

}  // namespace cadenza::app
