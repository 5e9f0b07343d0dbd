// SPDX-License-Identifier: Apache-2.0
// HDF5 types and units of the rows; names and offsets come from the structs.
#include <bit>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "trace/schema.hpp"

namespace cadenza::trace {
namespace {

static_assert(std::endian::native == std::endian::little, "rows are written as they lie in memory");
static_assert(sizeof(MemorySample) == 80 && sizeof(MemoryHighwater) == 72);
static_assert(sizeof(StepRecord) == 120 && sizeof(ClockSync) == 32 && sizeof(PlannedTask) == 80);
static_assert(sizeof(PlannedStage) == 80 && sizeof(PositionLoss) == 40 && sizeof(AnswerLoss) == 48);
static_assert(sizeof(RankRow) == 248 && sizeof(StatusRow) == 40);

/// A column has the name of its member, here and in the frames of the analysis.
#define CADENZA_FIELD(member) #member, offsetof(T, member)

struct Field {
  const char* name;
  std::size_t offset;
  hid_t type;
  const char* unit = "";
};

RowDescription describe(std::size_t size, std::initializer_list<Field> fields) {
  RowDescription rows{storage::Handle(H5Tcreate(H5T_COMPOUND, size), H5Tclose), {}};
  for (const Field& field : fields) {
    H5Tinsert(rows.type.get(), field.name, field.offset, field.type);
    rows.attributes["units"].emplace_back(field.unit);
  }
  return rows;
}

/// An enumeration with numbers of one byte or of four.
/// @param members  numbers and names; HDF5 reads a number's first bytes, as rows are little endian
template <typename Enum, std::size_t Count>
storage::Handle enumeration(const std::array<Named<Enum>, Count>& members) {
  static_assert(sizeof(Enum) == 1 || sizeof(Enum) == 4);
  const hid_t base = sizeof(Enum) == 1 ? H5T_STD_U8LE : H5T_STD_U32LE;
  storage::Handle type(H5Tenum_create(base), H5Tclose);
  for (const Named<Enum>& member : members) {
    H5Tenum_insert(type.get(), std::string(member.name).c_str(), &member.value);
  }
  return type;
}

/// An enumeration of names whose numbers are their indices.
template <typename Number, std::size_t Count>
storage::Handle enumeration(const std::array<std::string_view, Count>& names) {
  std::array<Named<Number>, Count> members{};
  for (std::size_t i = 0; i < Count; ++i) members[i] = {static_cast<Number>(i), names[i]};
  return enumeration(members);
}

/// One column per MemoryKind.
storage::Handle kinds() {
  const hsize_t count = kMemoryKinds;
  return {H5Tarray_create2(H5T_STD_I64LE, 1, &count), H5Tclose};
}

RowDescription with_kinds(RowDescription rows) {
  for (const std::string_view kind : kMemoryKindNames) rows.attributes["kinds"].emplace_back(kind);
  return rows;
}

}  // namespace

template <>
RowDescription describe_rows<Event>() {
  using T = Event;
  const auto category = enumeration<std::uint8_t>(kCategoryNames);
  const auto phase = enumeration<std::uint8_t>(kPhaseNames);
  const auto lane = enumeration(kLaneNames);
  const auto flags = enumeration(kFlagNames);  // numbers are bits
  return describe(sizeof(T), {{CADENZA_FIELD(begin_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(end_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(bytes), H5T_STD_I64LE, "B"},
                              {CADENZA_FIELD(flops), H5T_IEEE_F64LE, "FLOP"},
                              {CADENZA_FIELD(enqueued_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(still_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(step), H5T_STD_U32LE},
                              {CADENZA_FIELD(peer), H5T_STD_I32LE},
                              {CADENZA_FIELD(flow), H5T_STD_U32LE},
                              {CADENZA_FIELD(microbatch), H5T_STD_I32LE},
                              {CADENZA_FIELD(layer), H5T_STD_I32LE},
                              {CADENZA_FIELD(tick), H5T_STD_I32LE},
                              {CADENZA_FIELD(stage), H5T_STD_I32LE},
                              {CADENZA_FIELD(half), H5T_STD_I32LE},
                              {CADENZA_FIELD(name_id), H5T_STD_U16LE},
                              {CADENZA_FIELD(category), category.get()},
                              {CADENZA_FIELD(phase), phase.get()},
                              {CADENZA_FIELD(lane), lane.get()},
                              {CADENZA_FIELD(flags), flags.get()}});
}

template <>
RowDescription describe_rows<MemorySample>() {
  using T = MemorySample;
  const auto columns = kinds();
  return with_kinds(describe(sizeof(T), {{CADENZA_FIELD(time_ns), H5T_STD_I64LE, "ns"},
                                         {CADENZA_FIELD(step), H5T_STD_U32LE},
                                         {CADENZA_FIELD(bytes), columns.get(), "B"},
                                         {CADENZA_FIELD(host_rss_bytes), H5T_STD_I64LE, "B"}}));
}

template <>
RowDescription describe_rows<MemoryHighwater>() {
  using T = MemoryHighwater;
  const auto columns = kinds();
  return with_kinds(describe(sizeof(T), {{CADENZA_FIELD(step), H5T_STD_U32LE},
                                         {CADENZA_FIELD(peak_bytes), columns.get(), "B"},
                                         {CADENZA_FIELD(peak_total_bytes), H5T_STD_I64LE, "B"}}));
}

template <>
RowDescription describe_rows<StepRecord>() {
  using T = StepRecord;
  return describe(sizeof(T), {{CADENZA_FIELD(step), H5T_STD_U32LE},
                              {CADENZA_FIELD(documents), H5T_STD_U32LE},
                              {CADENZA_FIELD(begin_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(end_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(tokens), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(sum_length2), H5T_IEEE_F64LE, "token^2"},
                              {CADENZA_FIELD(model_flops), H5T_IEEE_F64LE, "FLOP"},
                              {CADENZA_FIELD(executed_flops), H5T_IEEE_F64LE, "FLOP"},
                              {CADENZA_FIELD(loss), H5T_IEEE_F64LE},
                              {CADENZA_FIELD(gradient_norm), H5T_IEEE_F64LE},
                              {CADENZA_FIELD(learning_rate), H5T_IEEE_F64LE},
                              {CADENZA_FIELD(n_events_end), H5T_STD_U64LE},
                              {CADENZA_FIELD(bytes_sent), H5T_STD_I64LE, "B"},
                              {CADENZA_FIELD(bytes_received), H5T_STD_I64LE, "B"},
                              {CADENZA_FIELD(machine_seconds), H5T_IEEE_F64LE, "s"},
                              {CADENZA_FIELD(dense_attention_flops), H5T_IEEE_F64LE, "FLOP"}});
}

template <>
RowDescription describe_rows<ClockSync>() {
  using T = ClockSync;
  const auto phase = enumeration(kClockPhaseNames);
  return describe(sizeof(T), {{CADENZA_FIELD(time_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(offset_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(rtt_min_ns), H5T_STD_I64LE, "ns"},
                              {CADENZA_FIELD(pings), H5T_STD_U32LE},
                              {CADENZA_FIELD(phase), phase.get()}});
}

template <>
RowDescription describe_rows<PlannedTask>() {
  using T = PlannedTask;
  return describe(sizeof(T), {{CADENZA_FIELD(step), H5T_STD_U32LE},
                              {CADENZA_FIELD(tick), H5T_STD_I32LE},
                              {CADENZA_FIELD(document), H5T_STD_I32LE},
                              {CADENZA_FIELD(home), H5T_STD_I32LE},
                              {CADENZA_FIELD(server), H5T_STD_I32LE},
                              {CADENZA_FIELD(stage), H5T_STD_I32LE},
                              {CADENZA_FIELD(q_begin), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(q_end), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(k_begin), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(k_end), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(cost), H5T_IEEE_F64LE, "FLOP"},
                              {CADENZA_FIELD(half), H5T_STD_I32LE},
                              {CADENZA_FIELD(layer_class), H5T_STD_I32LE},
                              {CADENZA_FIELD(layers), H5T_STD_I32LE}});
}

template <>
RowDescription describe_rows<PlannedStage>() {
  using T = PlannedStage;
  const auto phase = enumeration<std::uint32_t>(kPhaseNames);
  return describe(sizeof(T), {{CADENZA_FIELD(step), H5T_STD_U32LE},
                              {CADENZA_FIELD(tick), H5T_STD_I32LE},
                              {CADENZA_FIELD(half), H5T_STD_I32LE},
                              {CADENZA_FIELD(phase), phase.get()},
                              {CADENZA_FIELD(stage), H5T_STD_I32LE},
                              {CADENZA_FIELD(server), H5T_STD_I32LE},
                              {CADENZA_FIELD(tasks), H5T_STD_I32LE},
                              {CADENZA_FIELD(messages_in), H5T_STD_I32LE},
                              {CADENZA_FIELD(cost), H5T_IEEE_F64LE, "FLOP"},
                              {CADENZA_FIELD(bytes_in), H5T_STD_I64LE, "B"},
                              {CADENZA_FIELD(bytes_out), H5T_STD_I64LE, "B"},
                              {CADENZA_FIELD(attend_seconds), H5T_IEEE_F64LE, "s"},
                              {CADENZA_FIELD(receive_seconds), H5T_IEEE_F64LE, "s"},
                              {CADENZA_FIELD(layer_class), H5T_STD_I32LE},
                              {CADENZA_FIELD(layers), H5T_STD_I32LE}});
}

template <>
RowDescription describe_rows<PositionLoss>() {
  using T = PositionLoss;
  return describe(sizeof(T), {{CADENZA_FIELD(step), H5T_STD_U32LE},
                              {CADENZA_FIELD(position), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(targets), H5T_STD_I64LE},
                              {CADENZA_FIELD(hits), H5T_STD_I64LE},
                              {CADENZA_FIELD(loss), H5T_IEEE_F64LE}});
}

template <>
RowDescription describe_rows<AnswerLoss>() {
  using T = AnswerLoss;
  return describe(sizeof(T), {{CADENZA_FIELD(step), H5T_STD_U32LE},
                              {CADENZA_FIELD(hit), H5T_STD_U32LE},
                              {CADENZA_FIELD(length), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(fact), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(position), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(loss), H5T_IEEE_F64LE},
                              {CADENZA_FIELD(document), H5T_STD_I32LE},
                              {CADENZA_FIELD(question), H5T_STD_I32LE}});
}

template <>
RowDescription describe_rows<DistanceRecall>() {
  using T = DistanceRecall;
  return describe(sizeof(T), {{CADENZA_FIELD(step), H5T_STD_U32LE},
                              {CADENZA_FIELD(layer), H5T_STD_I32LE},
                              {CADENZA_FIELD(distance), H5T_STD_I64LE, "token"},
                              {CADENZA_FIELD(kept), H5T_IEEE_F64LE},
                              {CADENZA_FIELD(attention), H5T_IEEE_F64LE},
                              {CADENZA_FIELD(keys), H5T_STD_I64LE},
                              {CADENZA_FIELD(unseen), H5T_STD_I64LE}});
}

template <>
RowDescription describe_rows<RankRow>() {
  using T = RankRow;
  const auto words = storage::text_type(64);
  const auto role = enumeration(kRoleNames);
  return describe(sizeof(T), {{CADENZA_FIELD(host), words.get()},
                              {CADENZA_FIELD(rank), H5T_STD_I32LE},
                              {CADENZA_FIELD(world), H5T_STD_I32LE},
                              {CADENZA_FIELD(local_rank), H5T_STD_I32LE},
                              {CADENZA_FIELD(role), role.get()},
                              {CADENZA_FIELD(data), H5T_STD_I32LE},
                              {CADENZA_FIELD(pipeline), H5T_STD_I32LE},
                              {CADENZA_FIELD(tensor), H5T_STD_I32LE},
                              {CADENZA_FIELD(context), H5T_STD_I32LE},
                              {CADENZA_FIELD(server), H5T_STD_I32LE},
                              {CADENZA_FIELD(threads), H5T_STD_I32LE},
                              {CADENZA_FIELD(device), words.get()},
                              {CADENZA_FIELD(peak_flops), H5T_IEEE_F64LE, "FLOP/s"},
                              {CADENZA_FIELD(attention_kernel), words.get()},
                              {CADENZA_FIELD(started_ns), H5T_STD_I64LE, "ns"}});
}

template <>
RowDescription describe_rows<StatusRow>() {
  using T = StatusRow;
  const auto state = enumeration(kStateNames);
  return describe(sizeof(T), {{CADENZA_FIELD(state), state.get()},
                              {CADENZA_FIELD(signal), H5T_STD_I32LE},
                              {CADENZA_FIELD(last_step), H5T_STD_I64LE},
                              {CADENZA_FIELD(n_events), H5T_STD_U64LE},
                              {CADENZA_FIELD(n_dropped), H5T_STD_U64LE},
                              {CADENZA_FIELD(writer_ns), H5T_STD_I64LE, "ns"}});
}

template <>
RowDescription describe_rows<Name>() {
  return {storage::text_type(kNameLength), {}};
}

}  // namespace cadenza::trace
