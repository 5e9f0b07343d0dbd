// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/failure.hpp"

#include <spdlog/spdlog.h>
#include <Kokkos_Core.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <new>
#include <optional>
#include <system_error>

#include "app/runtime/threads.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/device_identity.hpp"

namespace cadenza::app {
namespace {

int end_job(comm::Communicator& world, const Failure& failure) {
  const int code = static_cast<int>(failure.code);
  print_error(world.size() > 1 ? fmt::format("rank {}: {}", world.rank(), failure.message)
                               : failure.message);
  std::fflush(nullptr);
  world.abort(code);
  return code;
}

/// Runs `body` with threads and Kokkos. @return code of an error that all ranks have
int with_threads(comm::Communicator& world, const std::function<void(comm::Communicator&)>& body) {
  try {
    std::optional<Threads> threads;
    // Kokkos counts ranks per node and warns on each; our own first line reports the same.
    auto settings = Kokkos::InitializationSettings().set_disable_warnings(true);
    if constexpr (!kDeviceIsCuda) {
      threads.emplace(world);
      settings.set_num_threads(threads->count());
    }
    if constexpr (kDeviceIsCuda) {
      // A hardware queue for each communicator, and all kernels loaded before one of NCCL waits for
      // a peer: loading may wait for the device. Lazily, a warm-up could not load them, because
      // cuBLAS chooses its kernels by shapes, which differ from step to step.
      setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
      setenv("CUDA_MODULE_LOADING", "EAGER", 0);
      collectively(world, [] {
        const std::string why = kernels::missing_device();
        if (!why.empty()) {
          fail(ExitCode::usage, "this build computes on an NVIDIA device: {}", why);
        }
      });
    }
    // Threads that deadlock while starting reach no point where the world could watch them.
    std::optional<comm::Deadline> starting(std::in_place, "to start the threads of OpenMP",
                                           config::Run{}.timeout, world.rank());
    Kokkos::ScopeGuard kokkos(settings);
    if (threads) threads->pin_workers();
    starting.reset();
    if (threads) {
      for (const std::string& line : threads->describe(world)) spdlog::info("threads   {}", line);
    }
    body(world);
  } catch (const CollectiveError& error) {
    if (world.rank() == 0) print_error(error.what());
    return static_cast<int>(error.code());
  }
  return static_cast<int>(ExitCode::ok);
}

}  // namespace

void collectively(comm::Communicator& world, const std::function<void()>& attempt) {
  Failure failure{ExitCode::ok, ""};
  try {
    attempt();
  } catch (...) {
    failure = current_failure();
  }
  auto& [code, message] = failure;
  std::int64_t first = code == ExitCode::ok ? world.size() : world.rank();
  world.all_reduce(std::span(&first, 1), comm::Reduction::min);
  if (first == world.size()) return;
  const int root = static_cast<int>(first);
  world.broadcast(std::as_writable_bytes(std::span(&code, 1)), root);
  throw CollectiveError(code, comm::broadcast(world, message, root));
}

void ending_the_job(comm::Communicator& world, const std::function<void()>& attempt) {
  if constexpr (!kDeviceIsCuda) return attempt();
  try {
    attempt();
  } catch (const CollectiveError&) {
    throw;
  } catch (...) {
    end_job(world, current_failure());
    throw;
  }
}

int in_session(int argc, char** argv, const std::function<void(comm::Communicator&)>& body) {
  comm::MpiSession mpi(argc, argv);
  const auto world = comm::make_world();
  try {
    world->set_timeout(config::Run{}.timeout);  // until the experiment is read
    const int code = with_threads(*world, body);
    world->barrier();  // so that nobody waits long in MPI_Finalize, which cannot be watched
    return code;
  } catch (...) {
    return end_job(*world, current_failure());
  }
}

}  // namespace cadenza::app
