// SPDX-License-Identifier: Apache-2.0
// Durability: all objects are made before the first step, then the file switches to reading while
// writing (SWMR). A step's data are flushed first, its row of /steps last, so that a process may be
// killed at any instruction and readers still find every step that has a row.
#include "cadenza/trace/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/new_file.hpp"
#include "trace/schema.hpp"

namespace cadenza::trace {
namespace {

using storage::Handle;

constexpr hsize_t kSmallChunk = 32;  // rows; those of the longest fill at most a page
constexpr hsize_t kMostEventChunk = 1024;

/// Rows of a chunk of events. The next step rewrites the last chunk of a step, whose old place
/// stays unused: large chunks waste more, small ones compress less. A quarter to a half of a step
/// needs the least space.
hsize_t event_chunk(std::size_t events_per_step) {
  return std::clamp<hsize_t>(std::bit_floor(events_per_step) / 2, kSmallChunk, kMostEventChunk);
}

/// Adds the time of a scope to the writer's own cost.
class Stopwatch {
 public:
  explicit Stopwatch(std::int64_t& total) : total_(total) {}
  ~Stopwatch() { total_ += now_ns() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::int64_t& total_;
  std::int64_t begin_ = now_ns();
};

template <typename Row>
Table make_table(Start start, const Handle& file, const std::string& path, const char* name,
                 hsize_t chunk, Packing packing) {
  return {start, file.get(), path, name, describe_rows<Row>(), chunk, packing};
}

}  // namespace

struct Writer::Implementation {
  Implementation(Start start, const std::string& path, std::size_t events_per_step);
  ~Implementation();
  void describe(const RunInfo& run, const RankInfo& rank);
  void begin(Start start);

  void append_names(const std::vector<std::string>& recorded);
  void write_status();
  void close();
  /// Runs `work`. If it fails, the file is abandoned without further calls of HDF5.
  template <typename Work>
  void guarded(Work work);
  std::array<Table*, 11> tables() {
    return {&events, &samples,   &highwater, &names,  &plan, &plan_summary,
            &clock,  &positions, &answers,   &recall, &steps};
  }

  std::int64_t overhead_ns = 0;
  std::string path;
  Handle file;  // declared before its datasets, so that it is closed after them
  storage::Place place;
  RowDescription status_rows;
  Handle status_dataset;
  Table events, samples, highwater, names, plan, plan_summary, clock, positions, answers, recall,
      steps;
  StatusRow status;
};

Writer::Implementation::Implementation(Start start, const std::string& where,
                                       std::size_t events_per_step)
    : path(where),
      file(start == Start::create ? create_file(path, Space::pages) : reopen_file(path)),
      place(path),
      status_rows(describe_rows<StatusRow>()),
      events(make_table<Event>(start, file, path, "/events", event_chunk(events_per_step),
                               Packing::compressed)),
      samples(make_table<MemorySample>(start, file, path, "/memory/samples", kSmallChunk,
                                       Packing::raw)),
      highwater(make_table<MemoryHighwater>(start, file, path, "/memory/highwater", kSmallChunk,
                                            Packing::raw)),
      names(make_table<Name>(start, file, path, "/meta/strings", kSmallChunk, Packing::raw)),
      plan(make_table<PlannedTask>(start, file, path, "/plan", kSmallChunk, Packing::compressed)),
      plan_summary(make_table<PlannedStage>(start, file, path, "/plan_summary", kSmallChunk,
                                            Packing::compressed)),
      clock(make_table<ClockSync>(start, file, path, "/clock/sync", kSmallChunk, Packing::raw)),
      positions(make_table<PositionLoss>(start, file, path, "/positions", kSmallChunk,
                                         Packing::compressed)),
      answers(make_table<AnswerLoss>(start, file, path, "/answers", kSmallChunk, Packing::raw)),
      recall(make_table<DistanceRecall>(start, file, path, "/recall", kSmallChunk, Packing::raw)),
      steps(make_table<StepRecord>(start, file, path, "/steps", kSmallChunk, Packing::raw)) {}

void Writer::Implementation::describe(const RunInfo& run, const RankInfo& rank) {
  write_run(file.get(), path, run, rank.rank, rank.world);
  const RankRow row = to_row(rank);
  write_rows(file.get(), path, "/meta/rank", describe_rows<RankRow>(), 1, &row);
  write_rows(file.get(), path, "/meta/status", status_rows, 1, &status);
}

/// Begins the steps: all objects exist, and from here on others may read.
void Writer::Implementation::begin(Start start) {
  const char* what = "cannot prepare the trace for its next step";
  status_dataset =
      Handle(checked(H5Dopen2(file.get(), "/meta/status", H5P_DEFAULT), path, what), H5Dclose);
  if (start == Start::resume) {
    if (H5Dread(status_dataset.get(), status_rows.type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                &status) < 0) {
      refuse(path, what);
    }
    overhead_ns = status.writer_ns;
    return;
  }
  if (H5Fflush(file.get(), H5F_SCOPE_LOCAL) < 0) refuse(path, what);
  if (H5Fstart_swmr_write(file.get()) < 0) refuse(path, what);
}

Writer::Implementation::~Implementation() {
  if (!file) return;
  try {
    status.state = State::error;
    close();
  } catch (const Error&) {
    // The cause of a run that ends before finish() is reported elsewhere; written steps are safe.
  }
}

template <typename Work>
void Writer::Implementation::guarded(Work work) {
  if (!file) fail(ExitCode::data, "{}: the trace was closed after an earlier error", path);
  try {
    work();
  } catch (const Error&) {
    // Closing would write the rest of the step out of order; without it readers find the last one.
    for (Table* table : tables()) table->abandon();
    status_dataset.release();
    file.release();
    throw;
  }
}

void Writer::Implementation::append_names(const std::vector<std::string>& recorded) {
  if (recorded.size() <= names.rows()) return;
  std::vector<Name> fresh(recorded.size() - names.rows());
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    copy_text(recorded[names.rows() + i], fresh[i].data(), kNameLength);
  }
  names.append(fresh.size(), fresh.data());
}

void Writer::Implementation::write_status() {
  status.n_events = events.rows();
  status.writer_ns = overhead_ns;
  const char* what = "cannot write /meta/status";
  if (H5Dwrite(status_dataset.get(), status_rows.type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT,
               &status) < 0) {
    refuse(path, what);
  }
  if (H5Dflush(status_dataset.get()) < 0) refuse(path, what);
}

void Writer::Implementation::close() {
  guarded([&] {
    for (Table* table : tables()) table->flush();
    write_status();
    const char* what = "cannot complete the trace";
    if (H5Fflush(file.get(), H5F_SCOPE_LOCAL) < 0) refuse(path, what);
    // HDF5 closes a file only when its last dataset is closed.
    for (Table* table : tables()) table->close();
    status_dataset.reset();
    if (H5Fclose(file.release()) < 0) refuse(path, what);
  });
}

Writer::Writer(const std::string& path, const RunInfo& run, const RankInfo& rank,
               std::size_t events_per_step)
    : implementation_(std::make_unique<Implementation>(Start::create, path, events_per_step)) {
  implementation_->guarded([&] {
    implementation_->describe(run, rank);
    implementation_->begin(Start::create);
  });
}

Writer::Writer(const std::string& path)
    : implementation_(std::make_unique<Implementation>(Start::resume, path, kMostEventChunk)) {
  implementation_->guarded([&] { implementation_->begin(Start::resume); });
}

Writer::~Writer() = default;

void Writer::write_clock(const ClockSync& sync) {
  const Stopwatch stopwatch(implementation_->overhead_ns);
  implementation_->guarded([&] { implementation_->clock.append(1, &sync); });
}

void Writer::write_plan(std::span<const PlannedTask> tasks, std::span<const PlannedStage> stages) {
  const Stopwatch stopwatch(implementation_->overhead_ns);
  implementation_->guarded([&] {
    implementation_->plan.append(tasks.size(), tasks.data());
    implementation_->plan_summary.append(stages.size(), stages.data());
  });
}

void Writer::write_losses(std::span<const PositionLoss> positions,
                          std::span<const AnswerLoss> answers) {
  const Stopwatch stopwatch(implementation_->overhead_ns);
  implementation_->guarded([&] {
    implementation_->positions.append(positions.size(), positions.data());
    implementation_->answers.append(answers.size(), answers.data());
  });
}

void Writer::write_recall(std::span<const DistanceRecall> rows) {
  const Stopwatch stopwatch(implementation_->overhead_ns);
  implementation_->guarded([&] { implementation_->recall.append(rows.size(), rows.data()); });
}

void Writer::write_step(StepRecord step, const MemoryHighwater& memory, Recorder& recorder) {
  Implementation& trace = *implementation_;
  const Stopwatch stopwatch(trace.overhead_ns);
  trace.guarded([&] {
    trace.place.require();
    trace.append_names(recorder.names());
    trace.events.append(recorder.events().size(), recorder.events().data());
    trace.samples.append(recorder.samples().size(), recorder.samples().data());
    trace.highwater.append(1, &memory);
    for (Table* table : trace.tables()) table->flush();

    step.n_events_end = trace.events.rows();
    trace.steps.append(1, &step);
    trace.steps.flush();

    trace.status.last_step = step.step;
    trace.status.n_dropped = recorder.dropped();
    trace.write_status();
  });
  recorder.clear();
}

void Writer::pause() {
  const Stopwatch stopwatch(implementation_->overhead_ns);
  implementation_->close();
}

void Writer::finish(int signal) {
  const Stopwatch stopwatch(implementation_->overhead_ns);
  implementation_->status.state = signal == 0 ? State::clean : State::signalled;
  implementation_->status.signal = signal;
  std::uint64_t bytes = 0;
  implementation_->guarded([&] {
    implementation_->place.require();
    for (Table* table : implementation_->tables()) {
      table->flush();
      bytes += table->bytes();
    }
  });
  implementation_->close();
  compact(implementation_->path, bytes);
}

std::int64_t Writer::overhead_ns() const {
  return implementation_->overhead_ns;
}

std::string rank_file_name(int rank) {
  return fmt::format("rank-{:05}.h5", rank);
}

void write_run_index(const std::string& folder, const RunInfo& run,
                     const std::vector<RankInfo>& ranks) {
  const std::string path = folder + "/run.h5";
  storage::Handle file = create_file(path, Space::packed);
  write_run(file.get(), path, run, -1, static_cast<int>(ranks.size()));
  std::vector<RankRow> rows;
  rows.reserve(ranks.size());
  for (const RankInfo& rank : ranks) rows.push_back(to_row(rank));
  write_rows(file.get(), path, "/ranks", describe_rows<RankRow>(), rows.size(), rows.data());

  const storage::Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.get(), 1);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int rank = static_cast<int>(i);
    const std::string link = fmt::format("/rank/{:05}", rank);
    if (H5Lcreate_external(rank_file_name(rank).c_str(), "/", file.get(), link.c_str(), links.get(),
                           H5P_DEFAULT) < 0) {
      refuse(path, fmt::format("cannot write {}", link));
    }
  }
  if (H5Fclose(file.release()) < 0) refuse(path, "cannot complete the index");
}

}  // namespace cadenza::trace
