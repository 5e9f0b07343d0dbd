// SPDX-License-Identifier: Apache-2.0
// The corpus as an endless stream: its documents in order, begun again whenever they end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cadenza/data/batch.hpp"

namespace cadenza::data {

class Stream {
 public:
  /// Copies the lengths, of which there is at least one. With `shuffle` each pass over the corpus
  /// has its own order, given by (seed, pass).
  Stream(std::span<const std::int64_t> lengths, bool shuffle, std::uint64_t seed);

  class Cursor;
  /// A reader that begins at a position, in tokens of the stream. Thread-safe.
  Cursor at(std::int64_t position) const;

 private:
  struct Pass;    // the documents of one pass with prefix sums of their lengths
  struct Recent;  // shuffled passes in use
  std::shared_ptr<const Pass> pass(std::int64_t index) const;

  bool shuffle_;
  std::uint64_t seed_;
  std::shared_ptr<const Pass> file_order_;
  std::shared_ptr<Recent> recent_;
};

/// A place in the stream.
class Stream::Cursor {
 public:
  Cursor(const Stream& stream, std::int64_t position);

  /// The next document, or as much of it as fits in `room` tokens.
  BatchDocument take(std::int64_t room);

 private:
  void next_document();

  const Stream& stream_;
  std::int64_t index_;  // of the pass
  std::shared_ptr<const Pass> pass_;
  std::int64_t place_ = 0;   // in the order of the pass
  std::int64_t offset_ = 0;  // tokens of the document already taken
};

}  // namespace cadenza::data
