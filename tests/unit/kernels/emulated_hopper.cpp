// SPDX-License-Identifier: Apache-2.0
#include <Kokkos_Core.hpp>
#ifndef KOKKOS_ENABLE_CUDA

#include "unit/kernels/emulated_hopper.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::testing {
namespace {

namespace sm90 = kernels::sm90;
using sm90::Bits;

float number(unsigned bits) {
  return std::bit_cast<float>(bits << 16);
}

sm90::MappedRows mapped_rows(const sm90::TensorMap& map) {
  sm90::MappedRows rows;
  std::memcpy(&rows, map.words, sizeof(rows));
  return rows;
}

}  // namespace

sm90::TensorMap emulated_map(const sm90::MappedRows& rows) {
  static_assert(sizeof(rows) <= sizeof(sm90::TensorMap));
  sm90::TensorMap map;
  std::memcpy(map.words, &rows, sizeof(rows));
  return map;
}

EmulatedHopper::EmulatedHopper(int shared_bytes, std::uint64_t seed, HopperFault fault)
    : bytes_(shared_bytes),
      fault_(fault),
      shared_((static_cast<std::size_t>(shared_bytes) + sizeof(Line) - 1) / sizeof(Line)),
      fibers_(kThreads, kLanes, seed) {}

void EmulatedHopper::run(const std::function<void(const HopperThread&)>& body) {
  std::memset(shared_.data(), 0xff, shared_.size() * sizeof(Line));  // NaN
  threads_.assign(kThreads, {});
  warpgroups_.assign(kThreads / kWarpgroup, {});
  warps_.assign(kThreads / kLanes, {});
  barriers_.clear();
  named_.clear();
  pending_.clear();
  fibers_.run([&](int index) { body(HopperThread(*this, index)); },
              [&] { return something_happens(); });
}

/// Whether the running thread's next act of this kind is the planted fault.
bool EmulatedHopper::left_out(HopperFault::Kind kind) {
  const bool loader = fibers_.running() < kWarpgroup;
  const int nth = running().counts[static_cast<int>(kind)]++;
  return fault_.kind == kind && fault_.by_loader == loader && fault_.nth == nth;
}

EmulatedHopper::BarrierState& EmulatedHopper::state(std::uint64_t* barrier) {
  const auto found = barriers_.find(barrier);
  if (found == barriers_.end()) throw std::runtime_error("a barrier that nobody initialised");
  return found->second;
}

/// Ends the phase if all is there.
void EmulatedHopper::settle(BarrierState& barrier) {
  if (barrier.missing < 0) throw std::runtime_error("more arrivals than a barrier expects");
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  for (const int waiting : std::exchange(barrier.waiting, {})) fibers_.make_ready(waiting);
}

/// Of `threads` threads; who does not `stay` does not wait for the others.
void EmulatedHopper::meet(NamedBarrier& barrier, int threads, bool stay) {
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    for (const int waiting : std::exchange(barrier.waiting, {})) fibers_.make_ready(waiting);
    return;
  }
  if (!stay) return;
  barrier.waiting.push_back(fibers_.running());
  fibers_.stop();
}

/// At once, or at some time.
void EmulatedHopper::later(std::function<void()> happening) {
  if (fibers_.random() % 2 == 0) return happening();
  pending_.push_back(std::move(happening));
}

/// One of what is pending. Products only happen when somebody waits for them, or at random.
bool EmulatedHopper::something_happens() {
  if (pending_.empty()) return false;
  const std::size_t at = fibers_.random() % pending_.size();
  std::swap(pending_[at], pending_.back());
  const auto happening = std::move(pending_.back());
  pending_.pop_back();
  happening();
  return true;
}

/// PTX ISA, "Tensor copy" with 128-byte swizzle: chunk c of row r goes to chunk c ^ r % 8.
void EmulatedHopper::copy(unsigned char* panel, const sm90::MappedRows& rows, int column, int head,
                          int row) {
  for (int r = 0; r < rows.tile; ++r) {
    const std::int64_t from = row + r;
    const bool inside = from >= 0 && from < rows.rows && head >= 0 && head < rows.heads;
    for (int chunk = 0; chunk < 8; ++chunk) {
      unsigned char* to = panel + r * 128 + (chunk ^ r % 8) * 16;
      if (inside) {
        const Bits* source =
            rows.data + (from * rows.heads + head) * rows.head_dim + column + chunk * 8;
        std::memcpy(to, source, 16);
      } else {
        std::memset(to, 0, 16);
      }
    }
  }
}

/// PTX ISA, "Matrix descriptor" and "Strides", with the 128-byte swizzle: `row` is a row of the
/// left factor or a column of the right one.
float EmulatedHopper::element(std::uint64_t descriptor, int row, int depth,
                              bool depth_is_rows) const {
  const auto start = static_cast<unsigned>(descriptor & 0x3fff) << 4;
  const auto leading = static_cast<unsigned>(descriptor >> 16 & 0x3fff) << 4;
  const auto stride = static_cast<unsigned>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1) throw std::runtime_error("not the 128-byte swizzle");
  const auto r = static_cast<unsigned>(row);
  const auto d = static_cast<unsigned>(depth);
  unsigned address = depth_is_rows
                         ? start + r / 64 * leading + r % 64 * 2 + d / 8 * stride + d % 8 * 128
                         : start + r / 8 * stride + r % 8 * 128 + d * 2;
  address ^= (address >> 7 & 7) << 4;
  if (address + 2 > static_cast<unsigned>(bytes_))
    throw std::runtime_error("outside shared memory");
  Bits bits;
  std::memcpy(&bits, reinterpret_cast<const unsigned char*>(shared_.data()) + address, 2);
  return number(bits);
}

/// PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16".
void EmulatedHopper::execute(Product& product) {
  constexpr int kDepth = 16;
  const int columns = product.tiles * 8;
  float left[64][kDepth];
  std::vector<float> right(static_cast<std::size_t>(kDepth * columns));
  for (int k = 0; k < kDepth; ++k) {
    for (int n = 0; n < columns; ++n) {
      right[static_cast<std::size_t>(k * columns + n)] =
          element(product.right, n, k, product.in_registers);
    }
    for (int m = 0; m < 64 && !product.in_registers; ++m) {
      left[m][k] = element(product.left, m, k, false);
    }
  }
  for (int thread = 0; thread < kWarpgroup && product.in_registers; ++thread) {
    for (int part = 0; part < 4; ++part) {
      const unsigned pair = product.registers[thread][part];
      float* to =
          &left[thread / 32 * 16 + thread % 32 / 4 + part % 2 * 8][thread % 4 * 2 + part / 2 * 8];
      to[0] = number(pair & 0xffffu);
      to[1] = number(pair >> 16);
    }
  }
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    for (int i = 0; i < product.tiles * 4; ++i) {
      const int m = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
      const int n = i / 4 * 8 + thread % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < kDepth; ++k) {
        sum += left[m][k] * right[static_cast<std::size_t>(k * columns + n)];
      }
      float& to = product.sums[thread][i];
      to = product.add ? to + sum : sum;
    }
  }
}

/// What was issued in groups before this one.
void EmulatedHopper::execute_groups(int warpgroup, int groups) {
  std::vector<Product>& issued = warpgroups_[static_cast<std::size_t>(warpgroup)].issued;
  std::size_t done = 0;
  while (done < issued.size() && issued[done].group < groups) execute(issued[done++]);
  issued.erase(issued.begin(), issued.begin() + static_cast<std::ptrdiff_t>(done));
}

void HopperThread::block_barrier() const {
  block_->meet(block_->named_[0], EmulatedHopper::kThreads);
}
void HopperThread::warp_barrier() const {
  block_->meet(block_->warps_[static_cast<std::size_t>(index_ / 32)], 32);
}
void HopperThread::sync(int barrier, int threads) const {
  block_->meet(block_->named_[barrier], threads);
}
void HopperThread::arrive(int barrier, int threads) const {
  block_->meet(block_->named_[barrier], threads, false);
}

void HopperThread::initialize(Barrier* barrier, int arrivals) const {
  block_->barriers_[barrier] = {arrivals, arrivals, 0, 0, {}};
}
void HopperThread::arrive(Barrier* barrier) const {
  if (block_->left_out(HopperFault::Kind::arrival)) return;
  auto& state = block_->state(barrier);
  --state.missing;
  block_->settle(state);
}
void HopperThread::arrive_expecting(Barrier* barrier, int bytes) const {
  auto& state = block_->state(barrier);
  state.bytes += bytes;
  --state.missing;
  block_->settle(state);
}
void HopperThread::arrive_when_copied(Barrier* barrier) const {
  auto numbers = std::exchange(block_->running().numbers, {});
  block_->later([block = block_, barrier, numbers = std::move(numbers)] {
    for (const auto& each : numbers) *each.to = each.inside ? *each.from : 0;
    auto& state = block->state(barrier);
    --state.missing;
    block->settle(state);
  });
}
void HopperThread::wait(Barrier* barrier, int parity) const {
  if (block_->left_out(HopperFault::Kind::wait)) return;
  auto& state = block_->state(barrier);
  if (block_->fibers_.random() % 256 == 0) block_->something_happens();
  while (state.phase % 2 == parity) {
    state.waiting.push_back(index_);
    block_->fibers_.stop();
  }
}

void HopperThread::copy_panel(void* panel, const TensorMap* map, Barrier* barrier, int column,
                              int head, int row) const {
  const sm90::MappedRows rows = mapped_rows(*map);
  auto* to = static_cast<unsigned char*>(panel);
  const auto offset = to - block_->shared();
  if (offset % 1024 != 0 || offset < 0 || offset + rows.tile * 128 > block_->bytes_) {
    throw std::runtime_error("a panel outside shared memory or not on 1024 bytes");
  }
  block_->later([=, block = block_] {
    block->copy(to, rows, column, head, row);
    auto& state = block->state(barrier);
    state.bytes -= rows.tile * 128;
    block->settle(state);
  });
}
void HopperThread::copy_number(float* to, const float* from, bool inside) const {
  block_->running().numbers.push_back({to, from, inside});
}

void HopperThread::issue(int tiles, float* sums, std::uint64_t left, const unsigned* registers,
                         std::uint64_t right, bool add) const {
  auto& warpgroup = block_->warpgroups_[static_cast<std::size_t>(index_ / sm90::kWarpgroup)];
  auto& next = warpgroup.next;
  const EmulatedHopper::Product product{
      tiles, block_->running().committed, left, right, registers != nullptr, add, {}, {}};
  if (warpgroup.asking == 0) next = product;
  if (next.tiles != tiles || next.group != product.group || next.left != left ||
      next.right != right || next.in_registers != product.in_registers || next.add != add) {
    throw std::runtime_error("threads of a warpgroup multiply different things");
  }
  next.sums[index_ % sm90::kWarpgroup] = sums;
  next.registers[index_ % sm90::kWarpgroup] = registers;
  const int barrier = 100 + index_ / sm90::kWarpgroup;
  if (++warpgroup.asking == sm90::kWarpgroup) {
    warpgroup.asking = 0;
    warpgroup.issued.push_back(next);
    if (block_->fibers_.random() % 8 == 0) {
      block_->execute_groups(index_ / sm90::kWarpgroup, product.group + 1);
    }
  }
  block_->meet(block_->named_[barrier], sm90::kWarpgroup);
}
void HopperThread::commit_products() const {
  ++block_->running().committed;
}
void HopperThread::wait_groups(int later) const {
  if (block_->left_out(HopperFault::Kind::products)) return;
  block_->execute_groups(index_ / sm90::kWarpgroup, block_->running().committed - later);
}

int HopperThread::take(int* counter) const {
  auto& warp = block_->warps_[static_cast<std::size_t>(index_ / 32)];
  block_->meet(warp, 32);
  const auto first = static_cast<std::size_t>(index_ / 32 * 32);
  if (index_ % 32 == 0) block_->threads_[first].bits = (*counter)++;
  block_->meet(warp, 32);
  return block_->threads_[first].bits;
}
float HopperThread::exchanged(float value, int bits) const {
  auto& warp = block_->warps_[static_cast<std::size_t>(index_ / 32)];
  block_->running().value = value;
  block_->meet(warp, 32);
  const float other = block_->threads_[static_cast<std::size_t>(index_ ^ bits)].value;
  block_->meet(warp, 32);
  return other;
}
unsigned HopperThread::shared_address(const void* shared) const {
  return static_cast<unsigned>(static_cast<const unsigned char*>(shared) - block_->shared());
}

}  // namespace cadenza::testing

#endif
