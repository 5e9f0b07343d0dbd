// SPDX-License-Identifier: Apache-2.0
#include "app/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"

namespace cadenza::app {
namespace {

/// Returns the key that names the files of the corpus; null: it has no file.
const char* corpus_key(const config::Data& data) {
  if (data.source == config::Source::text || data.source == config::Source::tokens) {
    return "data.path";
  }
  return data.lengths.path.empty() ? nullptr : "data.lengths.path";
}

std::uint64_t hash_of(const config::SparseAttention& sparse) {
  Hasher hash;
  for (const auto& layer : sparse.heads) {
    hash.add(static_cast<std::uint64_t>(layer.size()));
    for (const config::HeadBudget& head : layer) {
      hash.add(static_cast<std::uint64_t>(head.columns))
          .add(static_cast<std::uint64_t>(head.slashes))
          .add(std::bit_cast<std::uint64_t>(head.top_p));
    }
  }
  return hash.value();
}

}  // namespace

config::FileContents file_contents(const config::Experiment& experiment,
                                   const data::Corpus& corpus) {
  config::FileContents contents;
  if (const char* key = corpus_key(experiment.data)) {
    const std::span<const std::int64_t> lengths = corpus.lengths();
    Hasher hash;
    for (const std::int64_t length : lengths) hash.add(static_cast<std::uint64_t>(length));
    contents[key] = fmt::format("{} documents of {} tokens, lengths {:016x}", lengths.size(),
                                std::reduce(lengths.begin(), lengths.end()), hash.value());
  }
  const config::SparseAttention& sparse = experiment.attention.sparse;
  if (!sparse.budgets.empty()) {
    contents["attention.sparse.budgets"] = fmt::format("budgets {:016x}", hash_of(sparse));
  }
  return contents;
}

namespace {

namespace fs = std::filesystem;

void require_folder(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  const fs::path folder = parent.empty() ? fs::path(".") : parent;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    if (!error) error = std::make_error_code(std::errc::not_a_directory);
  } else if (access(folder.c_str(), W_OK | X_OK) != 0) {
    error = {errno, std::generic_category()};
  }
  if (!error) return;
  fail(ExitCode::data,
       "{}: cannot be written: {}; valid: --output with a file in an existing folder", path,
       error.message());
}

}  // namespace

std::string plain_path(const std::string& path) {
  std::filesystem::path plain = std::filesystem::path(path).lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  return plain.string();
}

void require_output(const std::string& path, const char* command, bool force,
                    const std::function<bool()>& written_by) {
  require_folder(path);
  std::error_code unseen;  // a missing file is no obstacle
  if (fs::is_symlink(path, unseen)) {
    fail(ExitCode::data, "{}: is a link to {}; valid: a place without a link", path,
         fs::read_symlink(path, unseen).string());
  }
  if (!fs::exists(path, unseen)) return;
  if (!fs::is_regular_file(path, unseen)) {
    fail(ExitCode::data, "{}: is not a regular file; valid: a file, or the name of a new one",
         path);
  }
  if (force) return;
  try {
    if (written_by()) return;
  } catch (const Error&) {
    // Readers of the command's output reject it.
  }
  fail(ExitCode::data,
       "{}: exists and was not written by {}; valid: --output with a new name, or --force", path,
       command);
}

}  // namespace cadenza::app
