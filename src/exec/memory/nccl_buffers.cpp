// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/memory/nccl_buffers.hpp"

#include <algorithm>
#include <cstdlib>

namespace cadenza::exec::nccl {
namespace {

/// Returns the value of an NCCL environment variable, which replaces NCCL's own choice.
std::int64_t setting(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  const std::int64_t number = value != nullptr ? std::atoll(value) : 0;
  return number > 0 ? number : otherwise;
}

}  // namespace

/// An end has a buffer for each of three protocols (NCCL 2.28: src/init.cc has their sizes,
/// src/transport/p2p.cc and net.cc allocate them, in pieces of 2 MiB). A peer in the same node
/// needs less: there the two ends of a connection share the buffers.
std::int64_t buffer_bytes(Purpose purpose, std::int64_t ends) {
  constexpr std::int64_t kPiece = std::int64_t{2} << 20;
  const std::int64_t end = setting("NCCL_LL_BUFFSIZE", 8 * 512 * 8 * 16) +
                           setting("NCCL_LL128_BUFFSIZE", 120 * 640 * 8 * 8) +
                           setting("NCCL_BUFFSIZE", std::int64_t{4} << 20);
  const std::int64_t pieces = (end + kPiece - 1) / kPiece;
  return ends * setting("NCCL_MAX_CTAS", most_channels(purpose)) * pieces * kPiece;
}

/// Both neighbours in a ring (one of them only to send to), and to and from a parent and two
/// children.
std::int64_t ends_of_collectives(std::int64_t ranks) {
  return std::min<std::int64_t>(2 * (ranks - 1), 8);
}

}  // namespace cadenza::exec::nccl
