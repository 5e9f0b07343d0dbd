// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include <Kokkos_Core.hpp>
#include <cstdio>
#include <iostream>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device_identity.hpp"
#include "limit.hpp"

namespace cadenza::bench {
namespace {

/// The limit is timed in between: on a shared machine only neighbouring times compare.
Json measure_beside_limit(const Repetitions& repetitions, const MakeWork& make_work,
                          const Json& request) {
  const std::unique_ptr<Work> work = make_work(request);
  const std::unique_ptr<Work> limit = make_limit({{"dtype", request.at("dtype")}});
  const std::vector<Json> results =
      measure({work.get(), limit.get()}, repetitions.warm_up, repetitions.count);
  Json all{{"work", request}, {"measured", results[0]}, {"limit", results[1]}};
  all["threads"] = Kokkos::DefaultExecutionSpace().concurrency();
  all["share_of_limit"] = results[0]["gflops"].get<double>() / results[1]["gflops"].get<double>();
  all["peak_rss_bytes"] = peak_rss_bytes();
  return all;
}

}  // namespace

void add_repetitions(CLI::App& app, Repetitions& repetitions) {
  app.add_option("--warm-up", repetitions.warm_up, "Repetitions that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--repetitions", repetitions.count, "Repetitions that are timed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--interactive", repetitions.interactive,
               "Read requests from standard input, a JSON object a line (bench/README.md)");
}

int run(CLI::App& app, int argc, char** argv, const Repetitions& repetitions,
        const MakeWork& make_work, const std::function<Json()>& request) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage);  // 0: --help
  }
  const std::string no_device = kernels::missing_device();
  if (!no_device.empty()) {
    std::fprintf(stderr, "%s: no NVIDIA device here: %s\n", app.get_name().c_str(),
                 no_device.c_str());
    return static_cast<int>(ExitCode::usage);
  }
  const Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  const MakeWork make = [&](const Json& asked) {
    return asked.value("kind", "") == "limit" ? make_limit(asked) : make_work(asked);
  };
  try {
    if (repetitions.interactive) {
      serve(std::cin, std::cout, make);
    } else {
      std::cout << measure_beside_limit(repetitions, make, request()).dump(2) << std::endl;
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}

}  // namespace cadenza::bench
