// SPDX-License-Identifier: Apache-2.0
#include "app/planner/failure.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

constexpr const char* kOutOfMemory =
    "out of memory (cadenza train --dry-run estimates the need of a run)";

[[noreturn]] void end_uncaught() {
  Failure failure{ExitCode::internal, "internal error: the program aborted"};
  if (std::current_exception()) {
    try {
      throw;
    } catch (...) {
      failure = current_failure();
    }
  }
  print_error(failure.message);
  std::_Exit(static_cast<int>(failure.code));
}

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::internal, kOutOfMemory};
  } catch (const std::length_error&) {  // more elements than any memory can hold
    return {ExitCode::internal, kOutOfMemory};
  } catch (const std::filesystem::filesystem_error& error) {
    return {ExitCode::data, error.what()};
  } catch (const std::system_error& error) {
    // thrown by fmt if standard output has no room for a long text
    if (std::ferror(stdout) != 0) {
      return {ExitCode::data,
              fmt::format("standard output: cannot be written: {}", error.code().message())};
    }
    return {ExitCode::internal, fmt::format("system error: {}", error.what())};
  } catch (const std::exception& error) {
    return {ExitCode::internal, fmt::format("internal error: {}", error.what())};
  } catch (...) {
    return {ExitCode::internal, "internal error: an unknown exception"};
  }
}

void print_error(const std::string& message) {
  constexpr std::size_t kLongest = 8000;
  const std::string line = printable(std::string_view(message).substr(0, kLongest));
  fmt::print(stderr, "cadenza: {}{}\n", line, message.size() > kLongest ? "..." : "");
}

void end_on_uncaught() {
  std::set_terminate(end_uncaught);
}

}  // namespace cadenza::app
