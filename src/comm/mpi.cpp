// SPDX-License-Identifier: Apache-2.0
// The MPI transport. Splits messages of more than 2^30 elements, so any size is allowed.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/comm/parts.hpp"
#include "comm/watch.hpp"

namespace cadenza::comm {
namespace {

constexpr std::size_t kLargestCount = std::size_t{1} << 30;

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

MPI_Datatype mpi_type(NumberType type) {
  switch (type) {
    case NumberType::float32:
      return MPI_FLOAT;
    case NumberType::float64:
      return MPI_DOUBLE;
    case NumberType::int64:
      return MPI_INT64_T;
    case NumberType::uint64:
      break;
  }
  return MPI_UINT64_T;
}

/// Calls piece(offset, count) for pieces of at most kLargestCount elements; once, with 0, if empty.
template <typename Piece>
void in_pieces(std::size_t count, Piece piece) {
  std::size_t offset = 0;
  do {
    const std::size_t part = std::min(kLargestCount, count - offset);
    piece(offset, static_cast<int>(part));
    offset += part;
  } while (offset < count);
}

/// Returns the count of a call that cannot be split.
int whole_count(std::size_t count, const char* call) {
  if (count > kLargestCount) {
    fail(ExitCode::communication, "{} of {} elements: at most {} in one call", call, count,
         kLargestCount);
  }
  return static_cast<int>(count);
}

int world_rank_of_first(MPI_Comm comm) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  check(MPI_Comm_group(comm, &group), "MPI_Comm_group");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  const int first = 0;
  int rank = 0;
  check(MPI_Group_translate_ranks(group, 1, &first, world, &rank), "MPI_Group_translate_ranks");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return rank;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, bool owned, std::shared_ptr<Watch> watch)
      : comm_(comm), owned_(owned), watch_(std::move(watch)) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    leader_ = world_rank_of_first(comm_);
  }
  ~MpiCommunicator() override {
    // Freeing is collective: during an exception, the other ranks do not take part.
    if (owned_ && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int leader() const override { return leader_; }
  void set_timeout(double seconds) override { watch_->set_timeout(seconds); }
  void set_activity(Activity activity) override { watch_->set_activity(std::move(activity)); }
  void set_looked(Looked looked) override { watch_->set_looked(std::move(looked)); }
  void set_background(std::function<void()> work) override {
    watch_->set_background(std::move(work));
  }

  void barrier() override {
    check(MPI_Ibarrier(comm_, &next(kOwn)), "MPI_Ibarrier");
    complete(kOwn, "barrier");
  }

  void broadcast(std::span<std::byte> data, int root) override {
    in_pieces(data.size(), [&](std::size_t offset, int count) {
      check(MPI_Ibcast(data.data() + offset, count, MPI_BYTE, root, comm_, &next(kOwn)),
            "MPI_Ibcast");
    });
    complete(kOwn, "broadcast");
  }
  void all_reduce(Numbers data, Reduction op) override {
    post_reduction(data, op, kOwn);
    complete(kOwn, "all_reduce");
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const int count = whole_count(mine.size(), "MPI_Allgather");
    check(MPI_Iallgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_,
                         &next(kOwn)),
          "MPI_Iallgather");
    complete(kOwn, "all_gather");
  }
  void reduce_scatter(ConstNumbers all, Numbers mine) override {
    if (all.size() != mine.size() * static_cast<std::size_t>(size_)) {
      fail(ExitCode::communication, "reduce_scatter: {} elements for {} ranks with {} each",
           all.size(), size_, mine.size());
    }
    with_type(all.type(), [&]<typename T>(T) { scatter_sum<T>(all.as<T>(), mine.as<T>()); });
  }

  void post_all_reduce(Numbers data, int channel) override {
    post_reduction(data, Reduction::sum, channel);
  }
  /// Posts one reduction to every rank: so all share the work, whereas Open MPI computes
  /// MPI_Ireduce_scatter on rank 0 alone, and parts can be split.
  void post_reduce_scatter(ConstNumbers all, std::span<const std::int64_t> counts, Numbers mine,
                           int channel) override {
    check_parts("post_reduce_scatter", counts, {mine.size(), all.size(), rank_, size_});
    for_each_part(counts, [&](int root, std::size_t first, std::size_t size) {
      if (size == 0) return;
      in_pieces(size, [&](std::size_t offset, int count) {
        const auto part = static_cast<std::size_t>(count);
        std::byte* to = root == rank_ ? mine.subspan(offset, part).bytes().data() : nullptr;
        check(MPI_Ireduce(all.subspan(first + offset, part).bytes().data(), to, count,
                          mpi_type(all.type()), MPI_SUM, root, comm_, &next(channel)),
              "MPI_Ireduce");
      });
    });
  }
  /// Posts a broadcast from every rank: see post_reduce_scatter.
  void post_all_gather_v(std::span<const std::byte> mine, std::span<const std::int64_t> byte_counts,
                         std::span<std::byte> all, int channel) override {
    check_parts("post_all_gather_v", byte_counts, {mine.size(), all.size(), rank_, size_});
    for_each_part(byte_counts, [&](int root, std::size_t first, std::size_t size) {
      if (size == 0) return;
      std::byte* part = all.data() + first;
      if (root == rank_ && part != mine.data()) std::ranges::copy(mine, part);
      in_pieces(size, [&](std::size_t offset, int count) {
        check(MPI_Ibcast(part + offset, count, MPI_BYTE, root, comm_, &next(channel)),
              "MPI_Ibcast");
      });
    });
  }

  /// Posts receives first, so that a message that arrives at once has its place.
  void post(std::span<const Receive> receives, std::span<const Send> sends, int channel) override {
    for (const Receive& want : receives) {
      in_pieces(want.data.size(), [&](std::size_t offset, int count) {
        check(MPI_Irecv(want.data.data() + offset, count, MPI_BYTE, want.from, want.tag, comm_,
                        &next(channel)),
              "MPI_Irecv");
      });
    }
    for (const Send& message : sends) {
      const auto send = message.met ? MPI_Issend : MPI_Isend;
      in_pieces(message.data.size(), [&](std::size_t offset, int count) {
        check(send(message.data.data() + offset, count, MPI_BYTE, message.to, message.tag, comm_,
                   &next(channel)),
              "MPI_Isend");
      });
    }
  }
  void wait(int channel) override { complete(channel, "messages"); }
  bool test(int channel) override {
    auto& requests = pending_[channel];
    int done = 0;
    check(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    if (done != 0) requests.clear();
    return done != 0;
  }
  void wait_until(const char* what, const std::function<bool()>& done) override {
    watch_->until(what, done);
  }
  void progress() override { watch_->progress(); }

  void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

  std::unique_ptr<Communicator> split(int color) override {
    barrier();  // can be watched, and shows which rank is missing
    MPI_Comm part = MPI_COMM_NULL;
    watch_->bounded("in MPI_Comm_split for a rank that does not answer",
                    [&] { check(MPI_Comm_split(comm_, color, rank_, &part), "MPI_Comm_split"); });
    return std::make_unique<MpiCommunicator>(part, true, watch_);
  }

 private:
  /// Channel and tag of the calls that complete what they post themselves.
  static constexpr int kOwn = -1;
  static constexpr int kOwnTag = 32767;  // every MPI supports it, and no other message uses it
  /// Elements of each rank that a reduce_scatter holds at a time.
  static constexpr std::size_t kPiece = std::size_t{1} << 18;

  void complete(int channel, const char* call) {
    watch_->until(call, [&] { return test(channel); });
  }
  /// Sums in rank order. Faster than MPI_Ireduce_scatter, which Open MPI computes on rank 0 alone,
  /// and than reductions to every rank.
  template <typename T>
  void scatter_sum(std::span<const T> all, std::span<T> mine) {
    std::vector<T> arrived(std::min(kPiece, mine.size()) * static_cast<std::size_t>(size_));
    for (std::size_t at = 0; at < mine.size(); at += kPiece) {
      const std::size_t count = std::min(kPiece, mine.size() - at);
      exchange_parts(all.subspan(at), mine.size(), std::span(arrived), count);
      for (int rank = 0; rank < size_; ++rank) {
        const auto part = static_cast<std::size_t>(rank);
        const T* from =
            rank == rank_ ? all.data() + part * mine.size() + at : arrived.data() + part * count;
        T* sum = mine.data() + at;
        if (rank == 0) {
          std::copy_n(from, count, sum);
        } else {
          for (std::size_t i = 0; i < count; ++i) sum[i] += from[i];
        }
      }
    }
  }
  /// Sends `count` elements of every rank's part to that rank, and receives all ranks' elements of
  /// this rank's part.
  template <typename T>
  void exchange_parts(std::span<const T> all, std::size_t stride, std::span<T> arrived,
                      std::size_t count) {
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank_ + distance) % size_;
      const int from = (rank_ + size_ - distance) % size_;
      const Receive want{std::as_writable_bytes(arrived.subspan(at(from) * count, count)), from,
                         kOwnTag};
      const Send mine{std::as_bytes(all.subspan(at(to) * stride, count)), to, kOwnTag};
      post({&want, 1}, {&mine, 1}, kOwn);
    }
    complete(kOwn, "reduce_scatter");
  }
  void post_reduction(Numbers data, Reduction op, int channel) {
    in_pieces(data.size(), [&](std::size_t offset, int count) {
      check(MPI_Iallreduce(MPI_IN_PLACE,
                           data.subspan(offset, static_cast<std::size_t>(count)).bytes().data(),
                           count, mpi_type(data.type()), mpi_op(op), comm_, &next(channel)),
            "MPI_Iallreduce");
    });
  }
  MPI_Request& next(int channel) { return pending_[channel].emplace_back(MPI_REQUEST_NULL); }

  MPI_Comm comm_;
  bool owned_;
  std::shared_ptr<Watch> watch_;
  int rank_ = 0;
  int size_ = 1;
  int leader_ = 0;
  std::map<int, std::vector<MPI_Request>> pending_;
};

}  // namespace

std::unique_ptr<Communicator> make_world() {
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, false, std::make_shared<Watch>());
}

HostPlace host_place(Communicator& world) {
  using Name = std::array<char, MPI_MAX_PROCESSOR_NAME>;
  Name mine{};
  int length = 0;
  check(MPI_Get_processor_name(mine.data(), &length), "MPI_Get_processor_name");
  std::vector<Name> names(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(names)));
  const auto before = std::span(names).first(static_cast<std::size_t>(world.rank()));
  return {mine.data(), static_cast<int>(std::ranges::count(before, mine))};
}

MpiSession::MpiSession(int& argc, char**& argv, MpiThreads threads) {
  int provided = 0;
  // The planning thread makes no MPI calls: only the main thread does.
  const int wanted = threads == MpiThreads::all ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
  check(MPI_Init_thread(&argc, &argv, wanted, &provided), "MPI_Init_thread");
  if (provided < wanted) {
    MPI_Finalize();
    fail(ExitCode::communication, "this MPI does not allow calls from {}",
         threads == MpiThreads::all ? "all threads" : "a process with threads");
  }
}

MpiSession::~MpiSession() {
  MPI_Finalize();
}

}  // namespace cadenza::comm
