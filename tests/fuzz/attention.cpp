// SPDX-License-Identifier: Apache-2.0
// The input of `cadenza attend`, and the index of sparse attention, read and computed on one rank.
// What is accepted has no bytes of another file in it, and lengths that are integers; an index is
// written as it was read.
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <memory>

#include "app/commands.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "mutate_hdf5.hpp"
#include "readers.hpp"

namespace cadenza::fuzz {
namespace {

using storage::Handle;

constexpr std::string_view kDense = R"(
model: {layers: 1, d_model: 16, heads: 2, ffn: 8, vocab: 8}
data: {source: synthetic}
batch: {tokens: 64, microbatch: 64}
attention: {placement: colocated, block: 16}
)";
/// Of the two documents of write_attention_input(), the first is sparse.
constexpr std::string_view kSparse = R"(
model: {layers: 1, d_model: 16, heads: 2, ffn: 8, vocab: 8}
data: {source: synthetic}
batch: {tokens: 64, microbatch: 64}
attention:
  placement: colocated
  block: 16
  kind: vertical_slash
  sparse: {block: 2, columns: 2, slashes: 2, sinks: 1, window: 1, dense_below: 3}
)";
constexpr std::array kIndex = {"index/block",   "index/document_lengths", "index/offset_begins",
                               "index/offsets", "index/column_begins",    "index/columns"};

/// A sound problem that takes more than the time of an input.
bool takes_long(const std::string& path) {
  constexpr hsize_t kElements = 1 << 18;
  constexpr hsize_t kLongest = 1ULL << 31;
  const storage::Shape q = storage::File::open(path).shape("q");
  if (q.size() != 3 || std::ranges::any_of(q, [](hsize_t n) { return n == 0 || n > kLongest; })) {
    return false;
  }
  return q[0] > 4096 || q[0] * q[1] > kElements || q[0] * q[1] * q[2] > kElements;
}

void check_own_bytes(const storage::File& file, const char* name) {
  H5L_info_t link{};
  H5Lget_info(file.id(), name, &link, H5P_DEFAULT);
  require(link.type != H5L_TYPE_EXTERNAL, "accepted {} of another file", name);
  const Handle data(H5Dopen2(file.id(), name, H5P_DEFAULT), H5Dclose);
  const Handle list(H5Dget_create_plist(data.get()), H5Pclose);
  require(H5Pget_external_count(list.get()) == 0 && H5Pget_layout(list.get()) != H5D_VIRTUAL,
          "accepted {} with bytes of another file", name);
}

void check_accepted(const std::string& path) {
  const storage::File file = storage::File::open(path);
  for (const char* name : {"q", "k", "v", "document_lengths"}) check_own_bytes(file, name);
  if (file.contains("dout")) check_own_bytes(file, "dout");
  const Handle data(H5Dopen2(file.id(), "document_lengths", H5P_DEFAULT), H5Dclose);
  const Handle type(H5Dget_type(data.get()), H5Tclose);
  require(H5Tget_class(type.get()) == H5T_INTEGER, "accepted lengths that are no integers");
}

void check_accepted_index(const std::string& path, const std::string& written) {
  const storage::File file = storage::File::open(path);
  const storage::File output = storage::File::open(written);
  for (const char* name : kIndex) {
    check_own_bytes(file, name);
    const auto found = file.read<std::int64_t>(name, file.shape(name));
    require(found == output.read<std::int64_t>(name, output.shape(name)),
            "wrote another {} than it accepted", name);
  }
}

/// Runs the command. @return the path of its output
std::string attend(std::string_view experiment, const std::string& input,
                   const std::string& index) {
  static const std::unique_ptr<comm::Communicator> world = comm::make_self();
  const InputFile yaml(
      {reinterpret_cast<const std::uint8_t*>(experiment.data()), experiment.size()},
      "experiment.yaml");
  app::CommandLine line;
  line.experiment = yaml.path();
  line.input = input;
  line.index = index;
  line.output = (scratch_folder() / "output.h5").string();
  app::attend(*world, line);
  return line.output;
}

}  // namespace

void read_attention(Bytes input) {
  const InputFile file(input, "input.h5");
  if (takes_long(file.path())) return;
  attend(kDense, file.path(), "");
  check_accepted(file.path());
}

void read_index(Bytes input) {
  static const std::string problem = [] {
    std::string path = (scratch_folder() / "problem.h5").string();
    write_attention_input(path);
    return path;
  }();
  const InputFile file(input, "index.h5");
  check_accepted_index(file.path(), attend(kSparse, problem, file.path()));
}

void write_attention_input(const std::string& path) {
  const std::vector<float> values(6 * 2 * 8, 0.5F);
  const std::vector<std::int64_t> lengths = {4, 2};
  storage::File file = storage::File::create(path);
  for (const char* name : {"q", "dout"}) file.write(name, {6, 2, 8}, values.data());
  for (const char* name : {"k", "v"}) file.write(name, {6, 1, 8}, values.data());
  file.write("document_lengths", {2}, lengths.data());
  file.close();
}

void write_index(const std::string& path) {
  const std::vector<std::vector<std::int64_t>> values = {
      {2}, {4, 2}, {0, 1, 3, 3, 3}, {0, 0, 1}, {0, 1, 3, 3, 3}, {1, 0, 2}};
  storage::File file = storage::File::create(path);
  for (std::size_t i = 0; i < kIndex.size(); ++i) {
    file.write(kIndex[i], {values[i].size()}, values[i].data());
  }
  file.close();
}

}  // namespace cadenza::fuzz
