// SPDX-License-Identifier: Apache-2.0
#include "app/attend/attend_files.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <limits>

#include "app/files.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

void require_shape(const storage::File& file, const char* dataset, const storage::Shape& valid) {
  const storage::Shape found = file.shape(dataset);
  if (found == valid) return;
  fail(ExitCode::data, "{}: {}: found shape [{}]; valid: [{}]", file.path(), dataset,
       fmt::join(found, ", "), fmt::join(valid, ", "));
}

/// Converts an extent to the kernels' type.
int small(const storage::File& file, const char* what, hsize_t found) {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (found > static_cast<hsize_t>(kMost)) {
    fail(ExitCode::data, "{}: found {} {}; valid: at most {}", file.path(), found, what, kMost);
  }
  return static_cast<int>(found);
}

/// Reads lengths that sum to `tokens`, without overflow of a partial sum.
std::vector<std::int64_t> read_lengths(const storage::File& file, std::int64_t tokens) {
  constexpr const char* kName = "document_lengths";
  const storage::Shape shape = file.shape(kName);
  if (shape.size() != 1 || shape[0] > static_cast<hsize_t>(tokens)) {
    fail(ExitCode::data,
         "{}: {}: found shape [{}]; valid: [documents], at most {}, the tokens of q", file.path(),
         kName, fmt::join(shape, ", "), tokens);
  }
  std::vector<std::int64_t> lengths = file.read<std::int64_t>(kName, shape);
  std::int64_t left = tokens;
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    if (lengths[document] < 1 || lengths[document] > left) {
      fail(ExitCode::data,
           "{}: {}: found {} tokens in document {}, which begins at token {}; valid: lengths of at "
           "least 1 that "
           "sum to the {} tokens of q",
           file.path(), kName, lengths[document], document, tokens - left, tokens);
    }
    left -= lengths[document];
  }
  if (left > 0) {
    fail(ExitCode::data,
         "{}: {}: found {} documents with {} tokens together; valid: lengths of at least 1 that "
         "sum to the {} tokens of q",
         file.path(), kName, lengths.size(), tokens - left, tokens);
  }
  return lengths;
}

}  // namespace

AttendProblem read_problem(const storage::File& file) {
  const storage::Shape q = file.shape("q");
  const storage::Shape k = file.shape("k");
  if (q.size() != 3 || k.size() != 3) {
    fail(ExitCode::data,
         "{}: q and k: found {} and {} dimensions; valid: [tokens, heads, head_dim]", file.path(),
         q.size(), k.size());
  }
  if (q[0] == 0 || q[1] == 0 || k[1] == 0 || q[2] == 0 || q[1] % k[1] != 0) {
    fail(ExitCode::data,
         "{}: found {} tokens, {} query heads of {} and {} key-value heads; valid: query heads "
         "a multiple of key-value heads, none of them zero",
         file.path(), q[0], q[1], q[2], k[1]);
  }
  AttendProblem problem;
  problem.shape.heads = small(file, "query heads", q[1]);
  problem.shape.kv_heads = small(file, "key-value heads", k[1]);
  problem.shape.head_dim = small(file, "elements of a head", q[2]);
  require_shape(file, "k", {q[0], k[1], q[2]});
  require_shape(file, "v", {q[0], k[1], q[2]});
  problem.backward = file.contains("dout");
  if (problem.backward) require_shape(file, "dout", q);
  problem.tokens = static_cast<std::int64_t>(q[0]);
  problem.lengths = read_lengths(file, problem.tokens);
  return problem;
}

void require_attend_output(const std::string& path, const std::string& input, bool force) {
  std::error_code unseen;  // a missing file is no obstacle
  if (fs::equivalent(path, input, unseen)) {
    fail(ExitCode::data, "{}: is the input file; valid: another file", path);
  }
  require_output(path, "cadenza attend", force, [&] {
    return storage::File::open(path).read_text_attribute("schema") == kAttendSchema;
  });
}

}  // namespace cadenza::app
