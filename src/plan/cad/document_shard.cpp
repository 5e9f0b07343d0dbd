// SPDX-License-Identifier: Apache-2.0
#include "plan/cad/document_shard.hpp"

namespace cadenza::plan {
namespace {

class ShardMaker {
 public:
  ShardMaker(const Workload& workload, const Homes& homes, std::int64_t block)
      : workload_(workload), homes_(homes), block_(block) {}

  std::vector<DocumentShard> make() {
    shards_.reserve(workload_.homes.size());
    for (std::size_t document = 0; document < workload_.lengths.size(); ++document) {
      add_document(static_cast<int>(document));
    }
    return std::move(shards_);
  }

 private:
  void add_document(int document) {
    const Range queries = workload_.queries_of(static_cast<std::size_t>(document));
    held_.clear();
    homes_.for_each_part(document, queries, [&](const Home& home) { held_.push_back(home); });
    std::stable_sort(held_.begin(), held_.end(),
                     [](const Home& a, const Home& b) { return a.rank < b.rank; });
    for (std::size_t begin = 0; begin < held_.size();) {
      const Rank rank = held_[begin].rank;
      ranges_.clear();
      for (; begin < held_.size() && held_[begin].rank == rank; ++begin) {
        const Range next = held_[begin].tokens;
        if (!ranges_.empty() && ranges_.back().end == next.begin) {
          ranges_.back().end = next.end;
        } else {
          ranges_.push_back(next);
        }
      }
      std::size_t first = 0;
      std::size_t last = ranges_.size() - 1;
      for (; first < last; ++first, --last) add_two(document, rank, ranges_[first], ranges_[last]);
      if (first == last) add_one(document, rank, ranges_[first]);
    }
  }

  void add_one(int document, Rank rank, Range range) {
    const std::int64_t middle = range.begin + DocumentShard::blocks(range, block_) / 2 * block_;
    shards_.push_back({document,
                       rank,
                       block_,
                       {range.begin, middle},
                       {middle, range.end},
                       workload_.weights_of(document)});
  }

  /// Adds a shard of head and tail. The blocks that the longer one has more become another shard.
  void add_two(int document, Rank rank, Range head, Range tail) {
    const std::int64_t more =
        DocumentShard::blocks(head, block_) - DocumentShard::blocks(tail, block_);
    if (more > 0) {
      const std::int64_t cut = head.begin + DocumentShard::blocks(tail, block_) * block_;
      add_one(document, rank, {cut, head.end});
      head.end = cut;
    } else if (more < 0) {
      const std::int64_t cut = tail.begin - more * block_;
      add_one(document, rank, {tail.begin, cut});
      tail.begin = cut;
    }
    shards_.push_back({document, rank, block_, head, tail, workload_.weights_of(document)});
  }

  const Workload& workload_;
  const Homes& homes_;
  std::int64_t block_;
  std::vector<DocumentShard> shards_;
  std::vector<Home> held_;
  std::vector<Range> ranges_;
};

}  // namespace

std::vector<DocumentShard> make_shards(const Workload& workload, const Homes& homes,
                                       std::int64_t block) {
  return ShardMaker(workload, homes, block).make();
}

}  // namespace cadenza::plan
