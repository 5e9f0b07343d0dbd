// SPDX-License-Identifier: Apache-2.0
// The model's tensor group over a communicator: through host memory where the device's is another.
#pragma once

#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/tensor_group.hpp"

namespace cadenza::exec {

template <typename Sum>
class TensorCollectives final : public model::TensorGroup<Sum> {
 public:
  TensorCollectives(comm::Communicator& group, Tracer& tracer)
      : group_(group),
        tracer_(tracer),
        gather_(tracer.intern("tensor_all_gather")),
        scatter_(tracer.intern("tensor_reduce_scatter")),
        reduce_(tracer.intern("tensor_all_reduce")) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    timed(gather_, all.size(), [&] {
      const HostCopy<const std::byte> from(mine);
      HostCopy<std::byte> to(all);
      group_.all_gather(from.host(), to.host());
      to.write_back();
    });
  }
  void reduce_scatter(std::span<const Sum> all, std::span<Sum> mine) override {
    timed(scatter_, all.size_bytes(), [&] {
      const HostCopy<const Sum> from(all);
      HostCopy<Sum> to(mine);
      group_.reduce_scatter(from.host(), to.host());
      to.write_back();
    });
  }
  void all_reduce_sum(std::span<Sum> values) override { reduce(values, comm::Reduction::sum); }
  void all_reduce_max(std::span<Sum> values) override { reduce(values, comm::Reduction::max); }

 private:
  /// Elements of the device where the host can use them.
  template <typename T>
  class HostCopy {
   public:
    using View = Kokkos::View<T*, DeviceMemory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    explicit HostCopy(std::span<T> device)
        : device_(device.data(), device.size()),
          host_(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, device_)) {}
    std::span<T> host() const { return {host_.data(), host_.extent(0)}; }
    void write_back() { Kokkos::deep_copy(device_, host_); }

   private:
    View device_;
    decltype(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, View())) host_;
  };

  template <typename Operation>
  void timed(std::uint16_t name, std::size_t bytes, Operation operation) {
    tracer_.time_inside(
        name, {.bytes = static_cast<std::int64_t>(bytes), .flow = tracer_.next_flow(group_, name)},
        operation);
  }

  void reduce(std::span<Sum> values, comm::Reduction op) {
    timed(reduce_, values.size_bytes(), [&] {
      HostCopy<Sum> copy(values);
      group_.all_reduce(copy.host(), op);
      copy.write_back();
    });
  }

  comm::Communicator& group_;
  Tracer& tracer_;
  std::uint16_t gather_, scatter_, reduce_;
};

}  // namespace cadenza::exec
