// SPDX-License-Identifier: Apache-2.0
// Hash, memory ledger, units and errors.
#include <gtest/gtest.h>

#include <limits>

#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/memory.hpp"
#include "cadenza/base/text.hpp"

namespace cadenza {
namespace {

TEST(HasherTest, IsFnv1a) {
  // Vectors of the FNV reference.
  EXPECT_EQ(Hasher().value(), 0xcbf29ce484222325ULL);
  EXPECT_EQ(Hasher().add(std::string_view("a")).value(), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(Hasher().add(std::string_view("foobar")).value(), 0x85944171f73967e8ULL);
}

TEST(HasherTest, NumbersAreEightBytesLowestFirst) {
  EXPECT_EQ(Hasher().add(std::uint64_t{0x6261}).value(),
            Hasher().add(std::string_view("ab\0\0\0\0\0\0", 8)).value());
  EXPECT_NE(Hasher().add(std::uint64_t{1}).add(std::uint64_t{2}).value(),
            Hasher().add(std::uint64_t{2}).add(std::uint64_t{1}).value());
}

TEST(MemoryLedgerTest, KeepsCurrentAndPeakByKind) {
  MemoryLedger ledger;
  ledger.add(MemoryKind::parameters, 100);
  ledger.add(MemoryKind::attention, 50);
  ledger.remove(MemoryKind::attention, 30);
  ledger.add(MemoryKind::gradients, 20);
  EXPECT_EQ(ledger.current(MemoryKind::attention), 20);
  EXPECT_EQ(ledger.peak(MemoryKind::attention), 50);
  EXPECT_EQ(ledger.total(), 140);
  EXPECT_EQ(ledger.peak_total(), 150) << "the peak of the sum, not the sum of the peaks";
  EXPECT_EQ(ledger.peak(MemoryKind::optimizer), 0);

  ledger.reset_peaks();
  EXPECT_EQ(ledger.peak(MemoryKind::attention), 20);
  EXPECT_EQ(ledger.peak_total(), 140);
  ledger.add(MemoryKind::attention, 1);
  EXPECT_EQ(ledger.peak_total(), 141);
}

TEST(MemoryLedgerTest, EveryKindHasItsName) {
  EXPECT_EQ(kMemoryKindNames[static_cast<std::size_t>(MemoryKind::parameters)], "parameters");
  EXPECT_EQ(kMemoryKindNames[static_cast<std::size_t>(MemoryKind::attention)], "attention");
  EXPECT_EQ(static_cast<int>(MemoryKind::other) + 1, kMemoryKinds);
}

TEST(Units, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(12.3 * 1024 * 1024), "12.3 MiB");
  EXPECT_EQ(format_bytes(3.5 * 1024 * 1024 * 1024), "3.5 GiB");
}

TEST(Units, Counts) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1200), "1.2K");
  EXPECT_EQ(format_count(1.2e6), "1.2M");
  EXPECT_EQ(format_count(2.5e15), "2.5P");
}

TEST(Units, Tokens) {
  EXPECT_EQ(format_tokens(850), "850");
  EXPECT_EQ(format_tokens(3 * 1024), "3K");
  EXPECT_EQ(format_tokens(131072), "128K");
  EXPECT_EQ(format_tokens(2 << 20), "2M");
  EXPECT_EQ(format_tokens(1.5 * (1 << 20)), "1.57M");
}

TEST(Units, Durations) {
  EXPECT_EQ(format_duration(12.4e-6), "12.4 us");
  EXPECT_EQ(format_duration(0.00234), "2.34 ms");
  EXPECT_EQ(format_duration(0.34), "340 ms");
  EXPECT_EQ(format_duration(2.44), "2.4 s");
  EXPECT_EQ(format_duration(192), "3m12s");
  EXPECT_EQ(format_duration(7500), "2h05m");
}

TEST(Units, NothingJumpsAtABoundary) {
  // Just below a unit must not print as more than a whole of it.
  EXPECT_EQ(format_duration(59.99), "1m00s");
  EXPECT_EQ(format_duration(0.9999), "1.0 s");
  EXPECT_EQ(format_duration(3599.7), "1h00m");
  EXPECT_EQ(format_bytes(1023.9 * 1024), "1 MiB");
  EXPECT_EQ(format_bytes(1010.0 * 1024), "1010 KiB");
  EXPECT_EQ(format_count(999'999), "1M");
}

TEST(ErrorTest, CarriesCodeAndMessage) {
  try {
    fail(ExitCode::data, "{}: found {}", "a.bin", 3);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_STREQ(error.what(), "a.bin: found 3");
    return;
  }
  FAIL() << "fail() returned";
}

}  // namespace
}  // namespace cadenza
