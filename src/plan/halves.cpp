// SPDX-License-Identifier: Apache-2.0
// The two halves of a tick in ping-pong: one computes while the other's rows travel.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"

namespace cadenza::plan {
namespace {

/// By document: how many of its first queries are in the first half.
using Cuts = std::vector<std::int64_t>;

class Halver {
 public:
  explicit Halver(const Workload& workload)
      : lengths_(workload.lengths),
        homes_(static_cast<std::size_t>(workload.ranks / workload.context) + 1),
        cuts_(workload.lengths.size(), 0) {
    for (const Home& home : workload.homes) {
      homes_[static_cast<std::size_t>(home.rank / workload.context)].push_back(home);
    }
  }

  Cuts cuts() {
    for (const std::vector<Home>& homes : homes_) halve(homes);
    return cuts_;
  }

 private:
  std::int64_t& cut(int document) { return cuts_[static_cast<std::size_t>(document)]; }
  std::int64_t length(int document) const { return lengths_[static_cast<std::size_t>(document)]; }

  /// Of the ways to halve a group, the one that leaves its ranks nearest to half their rows.
  void halve(const std::vector<Home>& homes) {
    std::vector<int> documents;
    for (const Home& home : homes) documents.push_back(home.document);
    std::sort(documents.begin(), documents.end());
    documents.erase(std::unique(documents.begin(), documents.end()), documents.end());
    if (documents.empty()) return;
    std::int64_t total = 0;
    for (int document : documents) total += length(document);
    in_order(documents, total / 2);
    Cuts best = cuts_;
    std::int64_t least = unevenness(homes);
    for (const bool middle : {true, false}) {
      longest_cut(documents, total / 2, middle);
      const std::int64_t found = unevenness(homes);
      if (found >= least) continue;
      least = found;
      best = cuts_;
    }
    cuts_ = best;
  }

  /// The first half of the tokens.
  void in_order(const std::vector<int>& documents, std::int64_t half) {
    for (int document : documents) {
      cut(document) = std::min(half, length(document));
      half -= cut(document);
    }
  }

  /// The longest document is cut, in its middle or where the halves become equal; the others go,
  /// longest first, whole into the smaller half.
  void longest_cut(std::vector<int> documents, std::int64_t half, bool middle) {
    std::stable_sort(documents.begin(), documents.end(),
                     [&](int a, int b) { return length(a) > length(b); });
    std::int64_t first = 0;
    std::int64_t second = 0;
    for (std::size_t i = 1; i < documents.size(); ++i) {
      const int document = documents[i];
      const bool to_first = first <= second;
      cut(document) = to_first ? length(document) : 0;
      (to_first ? first : second) += length(document);
    }
    const int longest = documents.front();
    cut(longest) =
        middle ? length(longest) / 2 : std::clamp<std::int64_t>(half - first, 0, length(longest));
  }

  /// Rows by which the halves of a rank differ, at worst.
  std::int64_t unevenness(const std::vector<Home>& homes) {
    std::map<Rank, std::int64_t> surplus;
    for (const Home& home : homes) {
      const std::int64_t first =
          std::clamp(cut(home.document), home.tokens.begin, home.tokens.end) - home.tokens.begin;
      surplus[home.rank] += 2 * first - home.tokens.size();
    }
    std::int64_t worst = 0;
    for (const auto& [rank, rows] : surplus) worst = std::max(worst, std::abs(rows));
    return worst;
  }

  const std::vector<std::int64_t>& lengths_;
  std::vector<std::vector<Home>> homes_;  // by context group
  Cuts cuts_;
};

}  // namespace

std::array<Workload, 2> halves(const Workload& workload) {
  if (!workload.order.natural()) {
    fail(ExitCode::usage,
         "attention.overlap: found ping_pong with tokens in {} stripes, whose first half sees keys "
         "of the second; valid: none",
         workload.order.stripes);
  }
  const Cuts cuts = Halver(workload).cuts();
  std::array<Workload, 2> both = {workload, workload};
  std::vector<Home> first;
  std::vector<Home> second;
  for (const Home& home : workload.homes) {
    const std::int64_t cut = cuts[static_cast<std::size_t>(home.document)];
    const Range before = intersect(home.tokens, {0, cut});
    const Range after = intersect(home.tokens, {cut, home.tokens.end});
    if (!before.empty()) first.push_back({home.rank, home.document, before});
    if (!after.empty()) second.push_back({home.rank, home.document, after});
  }
  first.insert(first.end(), second.begin(), second.end());
  for (std::size_t half = 0; half < both.size(); ++half) {
    both[half].homes = first;
    both[half].queries.clear();
    for (std::size_t document = 0; document < cuts.size(); ++document) {
      both[half].queries.push_back(half == 0 ? Range{0, cuts[document]}
                                             : Range{cuts[document], workload.lengths[document]});
    }
  }
  return both;
}

}  // namespace cadenza::plan
