// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <vector>

#include "cadenza/trace/writer.hpp"
#include "trace/schema.hpp"

namespace cadenza::trace {

std::string rank_file_name(int rank) {
  return fmt::format("rank-{:05}.h5", rank);
}

void write_run_index(const std::string& folder, const RunInfo& run,
                     const std::vector<RankInfo>& ranks) {
  const std::string path = folder + "/run.h5";
  storage::Handle file = create_file(path, Space::packed);
  write_run(file.get(), path, run, -1, static_cast<int>(ranks.size()));
  std::vector<RankRow> rows;
  rows.reserve(ranks.size());
  for (const RankInfo& rank : ranks) rows.push_back(to_row(rank));
  write_rows(file.get(), path, "/ranks", describe_rows<RankRow>(), rows.size(), rows.data());

  const storage::Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int rank = static_cast<int>(i);
    const std::string link = fmt::format("/rank/{:05}", rank);
    if (H5Lcreate_external(rank_file_name(rank).c_str(), "/", file.get(), link.c_str(), links.get(),
                           H5P_DEFAULT) < 0) {
      refuse(path, fmt::format("cannot write {}", link));
    }
  }
  if (H5Fclose(file.release()) < 0) refuse(path, "cannot complete the index");
}

}  // namespace cadenza::trace
