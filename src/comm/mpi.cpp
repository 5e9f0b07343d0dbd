// SPDX-License-Identifier: Apache-2.0
// The MPI transport. Counts beyond 2^30 elements are cut, so that any message size is allowed.
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::comm {
namespace {

constexpr std::size_t kLargestCount = std::size_t{1} << 30;

void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  fail(ExitCode::communication, "{} failed: {}", call,
       std::string_view(text, static_cast<std::size_t>(length)));
}

MPI_Op mpi_op(Reduction op) {
  switch (op) {
    case Reduction::min:
      return MPI_MIN;
    case Reduction::max:
      return MPI_MAX;
    case Reduction::sum:
      break;
  }
  return MPI_SUM;
}

template <typename T>
MPI_Datatype mpi_type();
template <>
MPI_Datatype mpi_type<float>() {
  return MPI_FLOAT;
}
template <>
MPI_Datatype mpi_type<double>() {
  return MPI_DOUBLE;
}
template <>
MPI_Datatype mpi_type<std::int64_t>() {
  return MPI_INT64_T;
}
template <>
MPI_Datatype mpi_type<std::uint64_t>() {
  return MPI_UINT64_T;
}

/// Calls piece(offset, count) for pieces of at most kLargestCount elements; once, empty, for none.
template <typename Piece>
void in_pieces(std::size_t count, Piece piece) {
  std::size_t offset = 0;
  do {
    const std::size_t part = std::min(kLargestCount, count - offset);
    piece(offset, static_cast<int>(part));
    offset += part;
  } while (offset < count);
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, bool owned) : comm_(comm), owned_(owned) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~MpiCommunicator() override {
    // Freeing is collective: while an exception unwinds, the other ranks are not here.
    if (owned_ && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { check(MPI_Barrier(comm_), "MPI_Barrier"); }

  void broadcast(std::span<std::byte> data, int root) override {
    in_pieces(data.size(), [&](std::size_t offset, int count) {
      check(MPI_Bcast(data.data() + offset, count, MPI_BYTE, root, comm_), "MPI_Bcast");
    });
  }
  void all_reduce(std::span<float> data, Reduction op) override { reduce(data, op); }
  void all_reduce(std::span<double> data, Reduction op) override { reduce(data, op); }
  void all_reduce(std::span<std::int64_t> data, Reduction op) override { reduce(data, op); }
  void all_reduce(std::span<std::uint64_t> data, Reduction op) override { reduce(data, op); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const int count = static_cast<int>(mine.size());
    check(MPI_Allgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_),
          "MPI_Allgather");
  }

  void post_send(std::span<const std::byte> data, int to, int tag, int channel) override {
    in_pieces(data.size(), [&](std::size_t offset, int count) {
      check(MPI_Isend(data.data() + offset, count, MPI_BYTE, to, tag, comm_, &next(channel)),
            "MPI_Isend");
    });
  }
  void post_receive(std::span<std::byte> data, int from, int tag, int channel) override {
    in_pieces(data.size(), [&](std::size_t offset, int count) {
      check(MPI_Irecv(data.data() + offset, count, MPI_BYTE, from, tag, comm_, &next(channel)),
            "MPI_Irecv");
    });
  }
  void wait(int channel) override {
    auto& requests = pending_[channel];
    check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall");
    requests.clear();
  }

  void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

  std::unique_ptr<Communicator> split(int color) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, rank_, &part), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(part, true);
  }

 private:
  template <typename T>
  void reduce(std::span<T> data, Reduction op) {
    in_pieces(data.size(), [&](std::size_t offset, int count) {
      check(MPI_Allreduce(MPI_IN_PLACE, data.data() + offset, count, mpi_type<T>(), mpi_op(op),
                          comm_),
            "MPI_Allreduce");
    });
  }
  MPI_Request& next(int channel) { return pending_[channel].emplace_back(MPI_REQUEST_NULL); }

  MPI_Comm comm_;
  bool owned_;
  int rank_ = 0;
  int size_ = 1;
  std::map<int, std::vector<MPI_Request>> pending_;
};

/// The variable in which mpirun or srun tells a process its rank.
const char* launcher_variable() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Communicator> make_world() {
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, false);
}

int launcher_rank() {
  const char* value = launcher_variable();
  return value != nullptr ? std::atoi(value) : 0;
}

bool has_launcher() {
  return launcher_variable() != nullptr;
}

HostPlace host_place(Communicator& world) {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  check(MPI_Get_processor_name(name, &length), "MPI_Get_processor_name");
  MPI_Comm node = MPI_COMM_NULL;
  check(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank(), MPI_INFO_NULL, &node),
      "MPI_Comm_split_type");
  HostPlace place{std::string(name, static_cast<std::size_t>(length)), 0};
  check(MPI_Comm_rank(node, &place.local_rank), "MPI_Comm_rank");
  MPI_Comm_free(&node);
  return place;
}

MpiSession::MpiSession(int& argc, char**& argv) {
  int provided = 0;
  // The planning thread makes no MPI calls: only the main thread does.
  check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
}

MpiSession::~MpiSession() {
  MPI_Finalize();
}

}  // namespace cadenza::comm
