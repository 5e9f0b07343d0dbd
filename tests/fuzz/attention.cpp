// SPDX-License-Identifier: Apache-2.0
// The input of `cadenza attend`, read and computed on one rank. What is accepted has no bytes of
// another file in it, and lengths that are integers.
#include <hdf5.h>

#include <algorithm>
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

constexpr std::string_view kExperiment = R"(
model: {layers: 1, d_model: 16, heads: 2, ffn: 8, vocab: 8}
data: {source: synthetic}
batch: {tokens: 64, microbatch: 64}
attention: {placement: colocated, block: 16}
)";

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

}  // namespace

void read_attention(Bytes input) {
  static const std::unique_ptr<comm::Communicator> world = comm::make_self();
  static const InputFile experiment(
      {reinterpret_cast<const std::uint8_t*>(kExperiment.data()), kExperiment.size()},
      "experiment.yaml");
  const InputFile file(input, "input.h5");
  if (takes_long(file.path())) return;
  app::CommandLine line;
  line.experiment = experiment.path();
  line.input = file.path();
  line.output = (scratch_folder() / "output.h5").string();
  app::attend(*world, line);
  check_accepted(file.path());
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

}  // namespace cadenza::fuzz
