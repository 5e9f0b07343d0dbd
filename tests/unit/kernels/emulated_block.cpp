// SPDX-License-Identifier: Apache-2.0
#include <Kokkos_Core.hpp>
#ifndef KOKKOS_ENABLE_CUDA

#include "unit/kernels/emulated_block.hpp"

#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::testing {
namespace {

float number(unsigned pair, int which) {
  const auto bits = static_cast<std::uint32_t>(which == 0 ? pair & 0xffffu : pair >> 16);
  return std::bit_cast<float>(bits << 16);
}

}  // namespace

EmulatedBlock::EmulatedBlock(int threads, int shared_bytes, std::uint64_t seed, int planted)
    : bytes_(shared_bytes),
      planted_(planted),
      shared_((static_cast<std::size_t>(shared_bytes) + sizeof(Line) - 1) / sizeof(Line)),
      fibers_(threads, kLanes, seed),
      threads_(static_cast<std::size_t>(threads)),
      asking_(threads_.size() / kLanes) {}

void EmulatedBlock::run(const Body& body) {
  std::memset(shared_.data(), 0xff, static_cast<std::size_t>(bytes_));  // NaN
  threads_.assign(threads_.size(), {});
  waiting_ = 0;
  std::ranges::fill(asking_, 0);
  fibers_.run([&](int index) { body(EmulatedThread(*this, index)); }, [] { return false; });
}

void EmulatedBlock::fail(const std::string& why) {
  throw std::runtime_error(why);
}

void EmulatedBlock::check_inside(const void* first, std::size_t bytes) const {
  const auto* begin = static_cast<const unsigned char*>(first);
  const auto* memory = reinterpret_cast<const unsigned char*>(shared_.data());
  if (begin < memory || begin + bytes > memory + bytes_) {
    throw std::runtime_error("bytes outside shared memory");
  }
  if (reinterpret_cast<std::uintptr_t>(first) % bytes != 0) {
    throw std::runtime_error("shared memory that does not begin at a multiple of its bytes");
  }
}

void EmulatedBlock::at_barrier(int index) {
  if (threads_[static_cast<std::size_t>(index)].barriers++ == planted_) return;
  if (++waiting_ < std::ssize(threads_)) return fibers_.stop();
  waiting_ = 0;
  for (int other = 0; other < std::ssize(threads_); ++other) {
    if (other != index) fibers_.make_ready(other);
  }
}

void EmulatedBlock::ask(int index, const Request& request) {
  const int warp = index / kLanes;
  threads_[static_cast<std::size_t>(index)].request = request;
  if (++asking_[static_cast<std::size_t>(warp)] < kLanes) return fibers_.stop();
  asking_[static_cast<std::size_t>(warp)] = 0;
  answer(warp);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (warp * kLanes + lane != index) fibers_.make_ready(warp * kLanes + lane);
  }
}

/// PTX ISA: "ldmatrix", "mma" (m16n8k16, bfloat16), "shfl.sync" (bfly) and "vote.sync" (any).
void EmulatedBlock::answer(int warp) {
  const auto of = [&](int lane) -> Request& {
    return threads_[static_cast<std::size_t>(warp * kLanes + lane)].request;
  };
  for (int lane = 1; lane < kLanes; ++lane) {
    if (of(lane).kind != of(0).kind) fail("lanes of a warp do different things");
  }
  const Kind kind = of(0).kind;
  if (kind == Kind::load || kind == Kind::load_transposed) {
    for (int lane = 0; lane < kLanes; ++lane) check_inside(of(lane).row, 16);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const auto element = [&](int row, int column) -> unsigned {
          return of(8 * matrix + row).row[column];
        };
        const int row = lane / 4;
        const int column = lane % 4 * 2;
        of(lane).to[matrix] = kind == Kind::load
                                  ? element(row, column) | element(row, column + 1) << 16
                                  : element(column, row) | element(column + 1, row) << 16;
      }
    }
  } else if (kind == Kind::exchange) {
    std::array<float, kLanes> values;
    for (int lane = 0; lane < kLanes; ++lane) {
      values[static_cast<std::size_t>(lane)] = *of(lane).value;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      *of(lane).value = values[static_cast<std::size_t>(lane ^ of(lane).bits)];
    }
  } else if (kind == Kind::any) {
    bool some = false;
    for (int lane = 0; lane < kLanes; ++lane) some = some || *of(lane).flag;
    for (int lane = 0; lane < kLanes; ++lane) *of(lane).flag = some;
  } else {
    float a[16][16];
    float b[16][8];
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 2; ++i) {
        for (int part = 0; part < 4; ++part) {
          a[lane / 4 + part % 2 * 8][lane % 4 * 2 + part / 2 * 8 + i] =
              number(of(lane).left[part], i);
        }
        for (int part = 0; part < 2; ++part) {
          b[lane % 4 * 2 + part * 8 + i][lane / 4] = number(of(lane).right[part], i);
        }
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        float sum = 0;
        for (int k = 0; k < 16; ++k) {
          sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
        }
        of(lane).sum[i] += sum;
      }
    }
  }
}

void EmulatedThread::barrier() const {
  block_->at_barrier(index_);
}

void EmulatedThread::copy_bytes(void* to, const void* from, std::size_t bytes, bool inside) const {
  block_->check_inside(to, bytes);
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
    block_->fail("a copy that does not begin at a multiple of its bytes");
  }
  const EmulatedBlock::Copy copy{to, from, bytes, inside};
  if (block_->fibers_.random() % 2 == 0) return EmulatedBlock::arrive(copy);
  block_->threads_[static_cast<std::size_t>(index_)].groups.back().push_back(copy);
}

void EmulatedBlock::arrive(const Copy& copy) {
  if (copy.inside) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
}

void EmulatedThread::commit() const {
  block_->threads_[static_cast<std::size_t>(index_)].groups.emplace_back();
}

void EmulatedThread::wait_but(std::size_t later) const {
  auto& groups = block_->threads_[static_cast<std::size_t>(index_)].groups;
  while (groups.size() > later + 1) {  // the last one is open
    for (const auto& copy : groups.front()) EmulatedBlock::arrive(copy);
    groups.erase(groups.begin());
  }
}

void EmulatedThread::load(unsigned (&to)[4], const Bits* row) const {
  block_->ask(index_, {.kind = EmulatedBlock::Kind::load, .row = row, .to = to});
}

void EmulatedThread::load_transposed(unsigned (&to)[4], const Bits* row) const {
  block_->ask(index_, {.kind = EmulatedBlock::Kind::load_transposed, .row = row, .to = to});
}

void EmulatedThread::multiply_add(float (&sum)[4], const unsigned (&left)[4], unsigned right0,
                                  unsigned right1) const {
  block_->ask(index_, {.kind = EmulatedBlock::Kind::multiply_add,
                       .sum = sum,
                       .left = left,
                       .right = {right0, right1}});
}

float EmulatedThread::exchanged(float value, int bits) const {
  block_->ask(index_, {.kind = EmulatedBlock::Kind::exchange, .value = &value, .bits = bits});
  return value;
}

bool EmulatedThread::any(bool of) const {
  block_->ask(index_, {.kind = EmulatedBlock::Kind::any, .flag = &of});
  return of;
}

}  // namespace cadenza::testing

#endif
