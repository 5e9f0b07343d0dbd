// SPDX-License-Identifier: Apache-2.0
// What a writer writes, read back by name and offset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <tuple>

#include "cadenza/base/error.hpp"
#include "reading.hpp"
#include "samples.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::trace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Layout = std::vector<std::tuple<std::string, std::size_t, std::size_t, H5T_class_t>>;

/// Name, offset, size and class of each field as the file has them.
Layout layout_of(hid_t file, const std::string& dataset) {
  const storage::Handle data(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
  const storage::Handle type(H5Dget_type(data.get()), H5Tclose);
  Layout layout;
  for (int i = 0; i < H5Tget_nmembers(type.get()); ++i) {
    const auto member = static_cast<unsigned>(i);
    char* name = H5Tget_member_name(type.get(), member);
    const storage::Handle field(H5Tget_member_type(type.get(), member), H5Tclose);
    layout.emplace_back(name, H5Tget_member_offset(type.get(), member), H5Tget_size(field.get()),
                        H5Tget_class(field.get()));
    H5free_memory(name);
  }
  return layout;
}

class WriterTest : public ::testing::Test {
 protected:
  const test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "rank-00001.h5";
};

TEST_F(WriterTest, LaysFieldsOutAsDocumented) {
  Writer(path_, sample_run(), sample_rank(1, 4)).finish();
  const auto file = open_trace(path_);
  constexpr auto I = H5T_INTEGER;
  constexpr auto F = H5T_FLOAT;
  constexpr auto A = H5T_ARRAY;
  constexpr auto S = H5T_STRING;
  constexpr auto E = H5T_ENUM;
  EXPECT_EQ(layout_of(file.get(), "/events"), (Layout{{"begin_ns", 0, 8, I},
                                                      {"end_ns", 8, 8, I},
                                                      {"bytes", 16, 8, I},
                                                      {"flops", 24, 8, F},
                                                      {"enqueued_ns", 32, 8, I},
                                                      {"still_ns", 40, 8, I},
                                                      {"step", 48, 4, I},
                                                      {"peer", 52, 4, I},
                                                      {"flow", 56, 4, I},
                                                      {"microbatch", 60, 4, I},
                                                      {"layer", 64, 4, I},
                                                      {"tick", 68, 4, I},
                                                      {"stage", 72, 4, I},
                                                      {"half", 76, 4, I},
                                                      {"name_id", 80, 2, I},
                                                      {"category", 82, 1, E},
                                                      {"phase", 83, 1, E},
                                                      {"lane", 84, 1, E},
                                                      {"flags", 85, 1, E}}));
  EXPECT_EQ(layout_of(file.get(), "/memory/samples"), (Layout{{"time_ns", 0, 8, I},
                                                              {"step", 8, 4, I},
                                                              {"bytes", 16, 56, A},
                                                              {"host_rss_bytes", 72, 8, I}}));
  EXPECT_EQ(layout_of(file.get(), "/memory/highwater"),
            (Layout{{"step", 0, 4, I}, {"peak_bytes", 8, 56, A}, {"peak_total_bytes", 64, 8, I}}));
  EXPECT_EQ(layout_of(file.get(), "/steps"), (Layout{{"step", 0, 4, I},
                                                     {"documents", 4, 4, I},
                                                     {"begin_ns", 8, 8, I},
                                                     {"end_ns", 16, 8, I},
                                                     {"tokens", 24, 8, I},
                                                     {"sum_length2", 32, 8, F},
                                                     {"model_flops", 40, 8, F},
                                                     {"executed_flops", 48, 8, F},
                                                     {"loss", 56, 8, F},
                                                     {"gradient_norm", 64, 8, F},
                                                     {"learning_rate", 72, 8, F},
                                                     {"n_events_end", 80, 8, I},
                                                     {"bytes_sent", 88, 8, I},
                                                     {"bytes_received", 96, 8, I},
                                                     {"machine_seconds", 104, 8, F},
                                                     {"dense_attention_flops", 112, 8, F}}));
  EXPECT_EQ(layout_of(file.get(), "/clock/sync"), (Layout{{"time_ns", 0, 8, I},
                                                          {"offset_ns", 8, 8, I},
                                                          {"rtt_min_ns", 16, 8, I},
                                                          {"pings", 24, 4, I},
                                                          {"phase", 28, 4, E}}));
  EXPECT_EQ(layout_of(file.get(), "/positions"), (Layout{{"step", 0, 4, I},
                                                         {"position", 8, 8, I},
                                                         {"targets", 16, 8, I},
                                                         {"hits", 24, 8, I},
                                                         {"loss", 32, 8, F}}));
  EXPECT_EQ(layout_of(file.get(), "/answers"), (Layout{{"step", 0, 4, I},
                                                       {"hit", 4, 4, I},
                                                       {"length", 8, 8, I},
                                                       {"fact", 16, 8, I},
                                                       {"position", 24, 8, I},
                                                       {"loss", 32, 8, F},
                                                       {"document", 40, 4, I},
                                                       {"question", 44, 4, I}}));
  EXPECT_EQ(layout_of(file.get(), "/plan"), (Layout{{"step", 0, 4, I},
                                                    {"tick", 4, 4, I},
                                                    {"document", 8, 4, I},
                                                    {"home", 12, 4, I},
                                                    {"server", 16, 4, I},
                                                    {"stage", 20, 4, I},
                                                    {"q_begin", 24, 8, I},
                                                    {"q_end", 32, 8, I},
                                                    {"k_begin", 40, 8, I},
                                                    {"k_end", 48, 8, I},
                                                    {"cost", 56, 8, F},
                                                    {"half", 64, 4, I},
                                                    {"layer_class", 68, 4, I},
                                                    {"layers", 72, 4, I}}));
  EXPECT_EQ(layout_of(file.get(), "/plan_summary"), (Layout{{"step", 0, 4, I},
                                                            {"tick", 4, 4, I},
                                                            {"half", 8, 4, I},
                                                            {"phase", 12, 4, E},
                                                            {"stage", 16, 4, I},
                                                            {"server", 20, 4, I},
                                                            {"tasks", 24, 4, I},
                                                            {"messages_in", 28, 4, I},
                                                            {"cost", 32, 8, F},
                                                            {"bytes_in", 40, 8, I},
                                                            {"bytes_out", 48, 8, I},
                                                            {"attend_seconds", 56, 8, F},
                                                            {"receive_seconds", 64, 8, F},
                                                            {"layer_class", 72, 4, I},
                                                            {"layers", 76, 4, I}}));
  EXPECT_EQ(layout_of(file.get(), "/meta/rank"), (Layout{{"host", 0, 64, S},
                                                         {"rank", 64, 4, I},
                                                         {"world", 68, 4, I},
                                                         {"local_rank", 72, 4, I},
                                                         {"role", 76, 4, E},
                                                         {"data", 80, 4, I},
                                                         {"pipeline", 84, 4, I},
                                                         {"tensor", 88, 4, I},
                                                         {"context", 92, 4, I},
                                                         {"server", 96, 4, I},
                                                         {"threads", 100, 4, I},
                                                         {"device", 104, 64, S},
                                                         {"peak_flops", 168, 8, F},
                                                         {"attention_kernel", 176, 64, S},
                                                         {"started_ns", 240, 8, I}}));
}

TEST_F(WriterTest, NamesItsNumbers) {
  Writer(path_, sample_run(), sample_rank(1, 4)).finish();
  const auto file = open_trace(path_);
  const auto names = [&](const std::string& dataset, const char* field) {
    return enumeration_of(file.get(), dataset, field);
  };
  const auto categories = names("/events", "category");
  EXPECT_EQ(categories.size(), 15u);
  EXPECT_EQ(categories.at("compute_attention"), 1);
  EXPECT_EQ(categories.at("trace_overhead"), 14);
  const Numbers phases = {
      {"forward", 0}, {"backward", 1}, {"recompute", 2}, {"optimizer", 3}, {"other", 4}};
  EXPECT_EQ(names("/events", "phase"), phases);
  EXPECT_EQ(names("/plan_summary", "phase"), phases);
  EXPECT_EQ(names("/events", "lane"), (Numbers{{"compute", 0}, {"communication", 1}, {"host", 2}}));
  EXPECT_EQ(names("/events", "flags"),
            (Numbers{{"device_timed", 1}, {"simulated", 2}, {"non_blocking", 4}, {"sends", 8}}));
  EXPECT_EQ(names("/clock/sync", "phase"), (Numbers{{"start", 0}, {"periodic", 1}, {"end", 2}}));
  EXPECT_EQ(names("/meta/rank", "role"),
            (Numbers{{"trainer", 0}, {"attention_server", 1}, {"both", 2}}));
  EXPECT_EQ(names("/meta/status", "state"),
            (Numbers{{"open", 0}, {"clean", 1}, {"signalled", 2}, {"error", 3}}));
}

TEST_F(WriterTest, NamesUnitsAndKindsOfMemory) {
  Writer(path_, sample_run(), sample_rank(1, 4)).finish();
  const auto file = open_trace(path_);
  EXPECT_THAT(texts_of(file.get(), "/memory/highwater", "units"), ElementsAre("", "B", "B"));
  EXPECT_THAT(texts_of(file.get(), "/memory/samples", "units"), ElementsAre("ns", "", "B", "B"));
  for (const char* dataset : {"/memory/highwater", "/memory/samples"}) {
    EXPECT_THAT(texts_of(file.get(), dataset, "kinds"),
                ElementsAre("parameters", "gradients", "optimizer", "activations", "communication",
                            "attention", "other"));
  }
  const auto units = texts_of(file.get(), "/events", "units");
  ASSERT_EQ(units.size(), layout_of(file.get(), "/events").size());
  EXPECT_THAT(std::vector(units.begin(), units.begin() + 6),
              ElementsAre("ns", "ns", "B", "FLOP", "ns", "ns"));
  EXPECT_EQ(units.back(), "");
  EXPECT_THAT(texts_of(file.get(), "/meta/rank", "units"), testing::Contains("FLOP/s").Times(1));
}

TEST_F(WriterTest, GoesOnWithAFileThatItPaused) {
  Recorder recorder(1000);
  for (const char* name : {"a", "b", "c"}) recorder.intern(name);
  {
    Writer writer(path_, sample_run(), sample_rank(1, 4));
    write_numbered_step(writer, recorder, 0, 100);
    writer.pause();
  }
  EXPECT_THAT(column<std::int64_t>(open_trace(path_, Access::plain).get(), "/meta/status", "state"),
              ElementsAre(0));
  for (std::uint32_t step = 1; step < 40; ++step) {
    Writer writer(path_);
    write_numbered_step(writer, recorder, step, 100);
    step == 39 ? writer.finish() : writer.pause();
  }
  const auto file = open_trace(path_, Access::plain);
  const auto begins = column<std::int64_t>(file.get(), "/events", "begin_ns");
  ASSERT_EQ(begins.size(), 4000u);
  for (std::int64_t i = 0; i < 4000; ++i) {
    EXPECT_EQ(begins[static_cast<std::size_t>(i)], numbered_event(i).begin_ns);
  }
  EXPECT_EQ(row_count(file.get(), "/steps"), 40u);
  EXPECT_EQ(row_count(file.get(), "/meta/strings"), 3u);
  EXPECT_EQ(column<std::int64_t>(file.get(), "/steps", "n_events_end").back(), 4000);
  EXPECT_THAT(column<std::int64_t>(file.get(), "/meta/status", "state"), ElementsAre(1));
  EXPECT_THAT(column<std::int64_t>(file.get(), "/meta/status", "last_step"), ElementsAre(39));
}

TEST_F(WriterTest, RefusesToGoOnWithWhatIsNoTrace) {
  for (const char* content : {"", "no HDF5"}) {
    std::ofstream(path_) << content;
    try {
      Writer{path_};
      ADD_FAILURE() << "went on with '" << content << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_THAT(error.what(), HasSubstr(path_));
    }
  }
}

TEST_F(WriterTest, SaysWhoseFileItIs) {
  Writer(path_, sample_run(), sample_rank(1, 4)).finish();
  const auto file = open_trace(path_);
  const hid_t id = file.get();
  EXPECT_EQ(text_attribute(id, "schema"), "cadenza-trace/1");
  EXPECT_EQ(text_attribute(id, "producer"), "trainer");
  EXPECT_EQ(text_attribute(id, "run_id"), "run-7");
  EXPECT_EQ(text_attribute(id, "code_version"), "0.1.0+abc");
  EXPECT_EQ(text_attribute(id, "code_revision"), "v0.1-3-gabc-dirty");
  EXPECT_EQ(text_attribute(id, "build"), "a compiler, Release");
  EXPECT_EQ(text_attribute(id, "time_unit"), "ns");
  EXPECT_EQ(text_attribute(id, "bytes_unit"), "B");
  EXPECT_EQ(text_attribute(id, "flops_convention"), "mul+add=2");
  EXPECT_EQ(text_attribute(id, "created_utc"), "2025-01-01T00:00:00Z");
  EXPECT_EQ(integer_attribute(id, "rank"), 1);
  EXPECT_EQ(integer_attribute(id, "world"), 4);
  const storage::Handle seed(H5Aopen(id, "seed", H5P_DEFAULT), H5Aclose);
  std::uint64_t value = 0;
  H5Aread(seed.get(), H5T_NATIVE_UINT64, &value);
  EXPECT_EQ(value, sample_run().seed);

  const storage::Handle yaml(H5Dopen2(id, "/meta/config_yaml", H5P_DEFAULT), H5Dclose);
  std::string text(row_count(id, "/meta/config_yaml"), '\0');
  H5Dread(yaml.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data());
  EXPECT_EQ(text, sample_run().config_yaml);

  const storage::Handle machine(H5Dopen2(id, "/meta/machine_yaml", H5P_DEFAULT), H5Dclose);
  text.assign(row_count(id, "/meta/machine_yaml"), '\0');
  H5Dread(machine.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data());
  EXPECT_EQ(text, sample_run().machine_yaml);

  EXPECT_THAT(text_column(id, "/meta/rank", 64, "host"), ElementsAre("node1"));
  EXPECT_THAT(text_column(id, "/meta/rank", 64, "device"), ElementsAre("a device"));
  const std::vector<std::pair<const char*, std::int64_t>> expected = {
      {"rank", 1},     {"world", 4},  {"local_rank", 1}, {"role", 1},   {"data", 0},
      {"pipeline", 2}, {"tensor", 3}, {"context", 4},    {"server", 5}, {"threads", 6}};
  for (const auto& [field, number] : expected) {
    EXPECT_THAT(column<std::int64_t>(id, "/meta/rank", field), ElementsAre(number)) << field;
  }
  EXPECT_THAT(column<double>(id, "/meta/rank", "peak_flops"), ElementsAre(1.25e12));
  EXPECT_THAT(text_column(id, "/meta/rank", 64, "attention_kernel"), ElementsAre("avx512"));
  EXPECT_THAT(column<std::int64_t>(id, "/meta/rank", "started_ns"), ElementsAre(4711));
}

TEST_F(WriterTest, KeepsEveryFieldOfEveryEvent) {
  Recorder recorder(5000);
  Writer writer(path_, sample_run(), sample_rank(1, 4));
  for (std::uint32_t step = 0; step < 3; ++step) write_numbered_step(writer, recorder, step, 1500);
  EXPECT_TRUE(recorder.events().empty()) << "the writer clears what it wrote";
  writer.finish();

  const auto file = open_trace(path_);
  const auto check = [&](const char* field, auto value_of) {
    const auto values = column<double>(file.get(), "/events", field);
    ASSERT_EQ(values.size(), 4500) << field;
    for (std::int64_t i = 0; i < 4500; ++i) {
      ASSERT_EQ(values[static_cast<std::size_t>(i)],
                static_cast<double>(value_of(numbered_event(i))))
          << field << " of event " << i;
    }
  };
  check("begin_ns", [](const Event& e) { return e.begin_ns; });
  check("end_ns", [](const Event& e) { return e.end_ns; });
  check("bytes", [](const Event& e) { return e.bytes; });
  check("flops", [](const Event& e) { return e.flops; });
  check("enqueued_ns", [](const Event& e) { return e.enqueued_ns; });
  check("step", [](const Event& e) { return e.step; });
  check("peer", [](const Event& e) { return e.peer; });
  check("flow", [](const Event& e) { return e.flow; });
  check("name_id", [](const Event& e) { return e.name_id; });
  check("microbatch", [](const Event& e) { return e.microbatch; });
  check("layer", [](const Event& e) { return e.layer; });
  check("category", [](const Event& e) { return static_cast<int>(e.category); });
  check("phase", [](const Event& e) { return static_cast<int>(e.phase); });
  check("lane", [](const Event& e) { return static_cast<int>(e.lane); });
  check("flags", [](const Event& e) { return e.flags; });
  check("tick", [](const Event& e) { return e.tick; });
  check("stage", [](const Event& e) { return e.stage; });
  check("half", [](const Event& e) { return e.half; });
  check("still_ns", [](const Event& e) { return e.still_ns; });
  EXPECT_THAT(column<std::int64_t>(file.get(), "/steps", "n_events_end"),
              ElementsAre(1500, 3000, 4500));
}

TEST_F(WriterTest, KeepsStepsMemoryClockAndPlan) {
  Recorder recorder(10);
  Writer writer(path_, sample_run(), sample_rank(1, 4));
  writer.write_clock({.time_ns = 1, .offset_ns = -2, .rtt_min_ns = 3, .pings = 4});
  PlannedTask task{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15.5, 1, 2, 3};
  const PlannedStage stage{1, 2, 3, 4, 5, 6, 7, 8, 9.5, 10, 11, 12.5, 13.5, 14, 15};
  writer.write_plan(std::vector{task, task}, std::vector{stage});
  writer.write_losses(std::vector{PositionLoss{1, 0, 2, 3, 4, 5.5}},
                      std::vector{AnswerLoss{1, 1, 2, 3, 4, 5.5}});
  writer.write_recall(std::vector{DistanceRecall{1, 2, 3, 4.5, 5.5, 6, 7}});
  MemorySample sample{1, 2, 0, {3, 4, 5, 6, 7, 8, 9}, 10};
  recorder.sample(sample);
  recorder.record({});
  const StepRecord step{1, 2, 3, 4, 5, 6.5, 7.5, 8.5, 9.5, 10.5, 11.5, 99, 13, 14, 15.5, 16.5};
  writer.write_step(step, {1, 0, {2, 3, 4, 5, 6, 7, 8}, 9}, recorder);
  writer.write_clock({.time_ns = 10, .phase = ClockPhase::end});
  writer.finish();

  const auto file = open_trace(path_);
  const auto whole = [&](const char* dataset, std::vector<const char*> fields) {
    std::vector<double> row;
    for (const char* field : fields) {
      row.push_back(column<double>(file.get(), dataset, field).at(0));
    }
    return row;
  };
  EXPECT_THAT(whole("/steps", {"step", "documents", "begin_ns", "end_ns", "tokens", "sum_length2",
                               "model_flops", "executed_flops", "loss", "gradient_norm",
                               "learning_rate", "n_events_end", "bytes_sent", "bytes_received",
                               "machine_seconds", "dense_attention_flops"}),
              ElementsAre(1, 2, 3, 4, 5, 6.5, 7.5, 8.5, 9.5, 10.5, 11.5, 1, 13, 14, 15.5, 16.5));
  EXPECT_THAT(
      whole("/plan", {"step", "tick", "document", "home", "server", "stage", "q_begin", "q_end",
                      "k_begin", "k_end", "cost", "half", "layer_class", "layers"}),
      ElementsAre(5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15.5, 1, 2, 3));
  EXPECT_THAT(
      whole("/plan_summary", {"step", "tick", "half", "phase", "stage", "server", "tasks",
                              "messages_in", "cost", "bytes_in", "bytes_out", "attend_seconds",
                              "receive_seconds", "layer_class", "layers"}),
      ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9.5, 10, 11, 12.5, 13.5, 14, 15));
  EXPECT_EQ(row_count(file.get(), "/plan"), 2);
  EXPECT_THAT(whole("/positions", {"step", "position", "targets", "hits", "loss"}),
              ElementsAre(1, 2, 3, 4, 5.5));
  EXPECT_THAT(whole("/answers", {"step", "hit", "length", "fact", "position", "loss"}),
              ElementsAre(1, 1, 2, 3, 4, 5.5));
  EXPECT_THAT(
      whole("/recall", {"step", "layer", "distance", "kept", "attention", "keys", "unseen"}),
      ElementsAre(1, 2, 3, 4.5, 5.5, 6, 7));
  EXPECT_THAT(whole("/clock/sync", {"time_ns", "offset_ns", "rtt_min_ns", "pings", "phase"}),
              ElementsAre(1, -2, 3, 4, 0));
  EXPECT_THAT(column<std::int64_t>(file.get(), "/clock/sync", "phase"), ElementsAre(0, 2));
  EXPECT_THAT(whole("/memory/samples", {"time_ns", "step", "host_rss_bytes"}),
              ElementsAre(1, 2, 10));
  EXPECT_THAT(column<std::int64_t>(file.get(), "/memory/samples", "bytes", 7),
              ElementsAre(3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(whole("/memory/highwater", {"step", "peak_total_bytes"}), ElementsAre(1, 9));
  EXPECT_THAT(column<std::int64_t>(file.get(), "/memory/highwater", "peak_bytes", 7),
              ElementsAre(2, 3, 4, 5, 6, 7, 8));
}

TEST_F(WriterTest, AppendsNamesAsTheyAppear) {
  Recorder recorder(10);
  Writer writer(path_, sample_run(), sample_rank(1, 4));
  recorder.intern("attention");
  write_numbered_step(writer, recorder, 0, 1);
  recorder.intern("mlp");
  recorder.intern(std::string(120, 'x'));
  recorder.intern("attention");
  write_numbered_step(writer, recorder, 1, 1);
  writer.finish();
  const auto file = open_trace(path_);
  EXPECT_THAT(text_column(file.get(), "/meta/strings", 96),
              ElementsAre("attention", "mlp", std::string(96, 'x')));
}

TEST_F(WriterTest, StatusTellsHowItEnded) {
  const auto status = [&](const char* field) {
    return column<std::int64_t>(open_trace(path_).get(), "/meta/status", field).at(0);
  };
  Recorder recorder(10);
  {
    Writer writer(path_, sample_run(), sample_rank(1, 4));
    EXPECT_EQ(status("state"), 0);
    EXPECT_EQ(status("last_step"), -1);
    write_numbered_step(writer, recorder, 0, 12);
    EXPECT_EQ(status("state"), 0);
    EXPECT_EQ(status("last_step"), 0);
    EXPECT_EQ(status("n_events"), 10);
    EXPECT_EQ(status("n_dropped"), 2);
    write_numbered_step(writer, recorder, 1, 11);
    writer.finish();
    EXPECT_GT(status("writer_ns"), 0);
    EXPECT_LE(status("writer_ns"), writer.overhead_ns());
    EXPECT_THROW(writer.finish(), Error);
    EXPECT_THROW(write_numbered_step(writer, recorder, 2, 1), Error);
  }
  EXPECT_EQ(status("state"), 1);
  EXPECT_EQ(status("last_step"), 1);
  EXPECT_EQ(status("n_dropped"), 3);
  {
    Writer writer(path_, sample_run(), sample_rank(1, 4));
    Recorder other(10);
    write_numbered_step(writer, other, 0, 1);
  }
  EXPECT_TRUE(open_trace(path_, Access::plain))
      << "an unfinished but living writer closes its file properly";
  EXPECT_EQ(status("state"), 3);
  EXPECT_EQ(status("last_step"), 0);
}

TEST_F(WriterTest, StatusNamesTheSignalThatEndedTheRun) {
  Recorder recorder(10);
  Writer writer(path_, sample_run(), sample_rank(1, 4));
  write_numbered_step(writer, recorder, 0, 5);
  writer.finish(10);
  const auto file = open_trace(path_, Access::plain);
  EXPECT_THAT(column<std::int64_t>(file.get(), "/meta/status", "state"), ElementsAre(2));
  EXPECT_THAT(column<std::int64_t>(file.get(), "/meta/status", "signal"), ElementsAre(10));
  EXPECT_THAT(column<std::int64_t>(file.get(), "/meta/status", "last_step"), ElementsAre(0));
}

TEST_F(WriterTest, NamesTheFileThatCannotBeCreated) {
  for (const std::string& path : {folder_ / "missing/rank-00000.h5", std::string("/proc/r.h5")}) {
    try {
      Writer writer(path, sample_run(), sample_rank(0, 1));
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path), HasSubstr("No such file or directory")));
    }
  }
}

/// A step of a trainer: layers x microbatches x phases x operations, with jittered times.
void record_schedule(Recorder& recorder, std::mt19937_64& random, std::uint32_t step,
                     std::int64_t& now) {
  constexpr std::array categories = {
      Category::compute_other,     Category::compute_dense,      Category::compute_other,
      Category::compute_other,     Category::attention_dispatch, Category::wait,
      Category::compute_attention, Category::attention_return,   Category::wait,
      Category::compute_dense,     Category::compute_other,      Category::compute_dense};
  std::uint32_t flow = step * 100000;
  for (int phase = 0; phase < 2; ++phase) {
    for (int microbatch = 0; microbatch < 8; ++microbatch) {
      for (int layer = 0; layer < 32; ++layer) {
        for (std::size_t i = 0; i < categories.size(); ++i) {
          Event event;
          const bool message = categories[i] == Category::attention_dispatch ||
                               categories[i] == Category::attention_return;
          event.begin_ns = now;
          event.end_ns = now + 20000 + static_cast<std::int64_t>(random() % 4000);
          now = event.end_ns + 150 + static_cast<std::int64_t>(random() % 100);
          event.step = step;
          event.layer = layer;
          event.microbatch = microbatch;
          event.category = categories[i];
          event.phase = static_cast<Phase>(phase);
          event.name_id = static_cast<std::uint16_t>(i);
          if (message) {
            event.peer = static_cast<std::int32_t>(random() % 8);
            event.flow = ++flow;
            event.bytes = 131072 * static_cast<std::int64_t>(1 + random() % 8);
            event.lane = Lane::communication;
          } else {
            event.flops = 1e9 * static_cast<double>(1 + i);
          }
          recorder.record(event);
        }
      }
    }
  }
}

/// Bytes of a trace of `steps` steps of 150 events each, with some rows of all else: chunks are
/// rewritten all the time.
std::uintmax_t size_of_short_steps(const std::string& path, std::uint32_t steps, bool finished) {
  std::mt19937_64 random(3);
  Recorder recorder(150);
  std::int64_t now = 1'000'000'000;
  Writer writer(path, sample_run(), sample_rank(0, 1), 150);
  for (std::uint32_t step = 0; step < steps; ++step) {
    record_schedule(recorder, random, step, now);
    std::vector<PlannedTask> tasks(3);
    for (PlannedTask& task : tasks) {
      task.step = step;
      task.q_end = task.k_end = static_cast<std::int64_t>(random() % 4096);
    }
    std::vector<PositionLoss> losses(40);
    for (PositionLoss& row : losses) {
      row.step = step;
      row.targets = static_cast<std::int64_t>(random() % 256);
    }
    writer.write_plan(tasks, {});
    writer.write_losses(losses, {});
    writer.write_step({.step = step}, {.step = step}, recorder);
  }
  finished ? writer.finish() : writer.pause();
  return std::filesystem::file_size(path);
}

TEST_F(WriterTest, ShortStepsLeaveFewUnusedPlaces) {
  constexpr std::uint32_t kShort = 50, kLong = 250;
  const auto bytes = [&](bool finished) {
    const auto least = static_cast<double>(size_of_short_steps(path_, kShort, finished));
    const auto most = static_cast<double>(size_of_short_steps(path_, kLong, finished));
    return (most - least) / (kLong - kShort);
  };
  const double open = bytes(false);
  const double finished = bytes(true);
  std::printf("             %.0f bytes a step of 150 events on disk, %.0f when finished\n", open,
              finished);
  EXPECT_LE(open, 3100) << "5800 where the last chunk of each table is large";
  EXPECT_LE(finished, 1500) << "3200 in the chunks of an open file";
  const auto file = open_trace(path_, Access::plain);
  EXPECT_EQ(text_attribute(file.get(), "run_id"), "run-7");
  EXPECT_EQ(integer_attribute(file.get(), "world"), 1);
  EXPECT_EQ(row_count(file.get(), "/events"), 150u * kLong);
  EXPECT_EQ(column<std::int64_t>(file.get(), "/steps", "n_events_end").back(), 150 * kLong);
  EXPECT_THAT(column<std::int64_t>(file.get(), "/meta/status", "state"), ElementsAre(1));
  EXPECT_EQ(row_count(file.get(), "/meta/config_yaml"), sample_run().config_yaml.size());
  EXPECT_EQ(row_count(file.get(), "/meta/machine_yaml"), sample_run().machine_yaml.size());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".compact"));
}

TEST_F(WriterTest, SmallAndCheapPerEvent) {
  std::mt19937_64 random(3);
  Recorder recorder(10000);
  std::int64_t now = now_ns();
  std::size_t events = 0;
  {
    Writer writer(path_, sample_run(), sample_rank(0, 1), 6144);
    const std::int64_t before = writer.overhead_ns();
    for (std::uint32_t step = 0; step < 10; ++step) {
      record_schedule(recorder, random, step, now);
      events += recorder.events().size();
      writer.write_step({.step = step}, {.step = step}, recorder);
    }
    const double ns =
        static_cast<double>(writer.overhead_ns() - before) / static_cast<double>(events);
    std::printf("             %.0f ns per event to write\n", ns);
    EXPECT_LT(ns, 50000);
    writer.finish();
  }
  const double bytes =
      static_cast<double>(std::filesystem::file_size(path_)) / static_cast<double>(events);
  std::printf("             %.1f bytes per event on disk, %zu events\n", bytes, events);
  EXPECT_LE(bytes, 16);
}

}  // namespace
}  // namespace cadenza::trace
