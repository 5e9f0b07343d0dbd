// SPDX-License-Identifier: Apache-2.0
// Field names, types and units of the rows; offsets come from the structs.
#include <bit>
#include <cstddef>
#include <initializer_list>
#include <string>

#include "schema.hpp"

namespace cadenza::trace {
namespace {

static_assert(std::endian::native == std::endian::little, "rows are written as they lie in memory");
static_assert(sizeof(MemorySample) == 80 && sizeof(MemoryHighwater) == 72);
static_assert(sizeof(StepRecord) == 120 && sizeof(ClockSync) == 32 && sizeof(PlannedTask) == 80);
static_assert(sizeof(PlannedStage) == 80 && sizeof(PositionLoss) == 40 && sizeof(AnswerLoss) == 40);
static_assert(sizeof(RankRow) == 240 && sizeof(StatusRow) == 40);

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

/// An enumeration of numbers of one byte, or of four.
/// @param members  whose numbers are read from their own first bytes: rows are little endian
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

/// Of names whose numbers are their indices.
template <typename Number, std::size_t Count>
storage::Handle enumeration(const std::array<std::string_view, Count>& names) {
  std::array<Named<Number>, Count> members{};
  for (std::size_t i = 0; i < Count; ++i) members[i] = {static_cast<Number>(i), names[i]};
  return enumeration(members);
}

storage::Handle text(std::size_t size) {
  storage::Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), size);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
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
  const auto flags = enumeration(kFlagNames);  // of bits
  return describe(sizeof(T), {{"t_begin_ns", offsetof(T, t_begin_ns), H5T_STD_I64LE, "ns"},
                              {"t_end_ns", offsetof(T, t_end_ns), H5T_STD_I64LE, "ns"},
                              {"bytes", offsetof(T, bytes), H5T_STD_I64LE, "B"},
                              {"flops", offsetof(T, flops), H5T_IEEE_F64LE, "FLOP"},
                              {"t_enq_ns", offsetof(T, t_enq_ns), H5T_STD_I64LE, "ns"},
                              {"step", offsetof(T, step), H5T_STD_U32LE},
                              {"peer", offsetof(T, peer), H5T_STD_I32LE},
                              {"flow", offsetof(T, flow), H5T_STD_U32LE},
                              {"name_id", offsetof(T, name_id), H5T_STD_U16LE},
                              {"mb", offsetof(T, microbatch), H5T_STD_I16LE},
                              {"layer", offsetof(T, layer), H5T_STD_I16LE},
                              {"doc", offsetof(T, document), H5T_STD_I16LE},
                              {"cat", offsetof(T, category), category.get()},
                              {"phase", offsetof(T, phase), phase.get()},
                              {"lane", offsetof(T, lane), lane.get()},
                              {"flags", offsetof(T, flags), flags.get()},
                              {"tick", offsetof(T, tick), H5T_STD_I32LE},
                              {"stage", offsetof(T, stage), H5T_STD_I16LE},
                              {"half", offsetof(T, half), H5T_STD_I8LE},
                              {"still_ns", offsetof(T, still_ns), H5T_STD_I64LE, "ns"}});
}

template <>
RowDescription describe_rows<MemorySample>() {
  using T = MemorySample;
  const auto columns = kinds();
  return with_kinds(describe(sizeof(T), {{"t_ns", offsetof(T, t_ns), H5T_STD_I64LE, "ns"},
                                         {"step", offsetof(T, step), H5T_STD_U32LE},
                                         {"bytes", offsetof(T, bytes), columns.get(), "B"},
                                         {"host_rss", offsetof(T, host_rss), H5T_STD_I64LE, "B"}}));
}

template <>
RowDescription describe_rows<MemoryHighwater>() {
  using T = MemoryHighwater;
  const auto columns = kinds();
  return with_kinds(
      describe(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                           {"peak", offsetof(T, peak), columns.get(), "B"},
                           {"peak_total", offsetof(T, peak_total), H5T_STD_I64LE, "B"}}));
}

template <>
RowDescription describe_rows<StepRecord>() {
  using T = StepRecord;
  return describe(
      sizeof(T),
      {{"step", offsetof(T, step), H5T_STD_U32LE},
       {"docs", offsetof(T, documents), H5T_STD_U32LE},
       {"t_begin", offsetof(T, t_begin_ns), H5T_STD_I64LE, "ns"},
       {"t_end", offsetof(T, t_end_ns), H5T_STD_I64LE, "ns"},
       {"tokens", offsetof(T, tokens), H5T_STD_I64LE, "token"},
       {"sum_len2", offsetof(T, sum_length2), H5T_IEEE_F64LE, "token^2"},
       {"model_flops", offsetof(T, model_flops), H5T_IEEE_F64LE, "FLOP"},
       {"executed_flops", offsetof(T, executed_flops), H5T_IEEE_F64LE, "FLOP"},
       {"loss", offsetof(T, loss), H5T_IEEE_F64LE},
       {"grad_norm", offsetof(T, gradient_norm), H5T_IEEE_F64LE},
       {"lr", offsetof(T, learning_rate), H5T_IEEE_F64LE},
       {"n_events_end", offsetof(T, n_events_end), H5T_STD_U64LE},
       {"bytes_sent", offsetof(T, bytes_sent), H5T_STD_I64LE, "B"},
       {"bytes_recv", offsetof(T, bytes_received), H5T_STD_I64LE, "B"},
       {"machine_s", offsetof(T, machine_seconds), H5T_IEEE_F64LE, "s"},
       {"dense_attention_flops", offsetof(T, dense_attention_flops), H5T_IEEE_F64LE, "FLOP"}});
}

template <>
RowDescription describe_rows<ClockSync>() {
  using T = ClockSync;
  const auto phase = enumeration(kClockPhaseNames);
  return describe(sizeof(T), {{"t_local_ns", offsetof(T, t_local_ns), H5T_STD_I64LE, "ns"},
                              {"offset_ns", offsetof(T, offset_ns), H5T_STD_I64LE, "ns"},
                              {"rtt_min_ns", offsetof(T, rtt_min_ns), H5T_STD_I64LE, "ns"},
                              {"n_ping", offsetof(T, pings), H5T_STD_U32LE},
                              {"phase", offsetof(T, phase), phase.get()}});
}

template <>
RowDescription describe_rows<PlannedTask>() {
  using T = PlannedTask;
  return describe(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"tick", offsetof(T, tick), H5T_STD_I32LE},
                              {"doc", offsetof(T, document), H5T_STD_I32LE},
                              {"home", offsetof(T, home), H5T_STD_I32LE},
                              {"server", offsetof(T, server), H5T_STD_I32LE},
                              {"stage", offsetof(T, stage), H5T_STD_I32LE},
                              {"q_begin", offsetof(T, q_begin), H5T_STD_I64LE, "token"},
                              {"q_end", offsetof(T, q_end), H5T_STD_I64LE, "token"},
                              {"k_begin", offsetof(T, k_begin), H5T_STD_I64LE, "token"},
                              {"k_end", offsetof(T, k_end), H5T_STD_I64LE, "token"},
                              {"cost", offsetof(T, cost_flops), H5T_IEEE_F64LE, "FLOP"},
                              {"half", offsetof(T, half), H5T_STD_I32LE},
                              {"layer_class", offsetof(T, layer_class), H5T_STD_I32LE},
                              {"layers", offsetof(T, layers), H5T_STD_I32LE}});
}

template <>
RowDescription describe_rows<PlannedStage>() {
  using T = PlannedStage;
  const auto phase = enumeration<std::uint32_t>(kPhaseNames);
  return describe(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"tick", offsetof(T, tick), H5T_STD_I32LE},
                              {"half", offsetof(T, half), H5T_STD_I32LE},
                              {"phase", offsetof(T, phase), phase.get()},
                              {"stage", offsetof(T, stage), H5T_STD_I32LE},
                              {"server", offsetof(T, server), H5T_STD_I32LE},
                              {"tasks", offsetof(T, tasks), H5T_STD_I32LE},
                              {"messages_in", offsetof(T, messages_in), H5T_STD_I32LE},
                              {"cost", offsetof(T, cost_flops), H5T_IEEE_F64LE, "FLOP"},
                              {"bytes_in", offsetof(T, bytes_in), H5T_STD_I64LE, "B"},
                              {"bytes_out", offsetof(T, bytes_out), H5T_STD_I64LE, "B"},
                              {"attend_s", offsetof(T, attend_seconds), H5T_IEEE_F64LE, "s"},
                              {"receive_s", offsetof(T, receive_seconds), H5T_IEEE_F64LE, "s"},
                              {"layer_class", offsetof(T, layer_class), H5T_STD_I32LE},
                              {"layers", offsetof(T, layers), H5T_STD_I32LE}});
}

template <>
RowDescription describe_rows<PositionLoss>() {
  using T = PositionLoss;
  return describe(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"position", offsetof(T, position), H5T_STD_I64LE, "token"},
                              {"targets", offsetof(T, targets), H5T_STD_I64LE},
                              {"hits", offsetof(T, hits), H5T_STD_I64LE},
                              {"loss", offsetof(T, loss), H5T_IEEE_F64LE}});
}

template <>
RowDescription describe_rows<AnswerLoss>() {
  using T = AnswerLoss;
  return describe(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"hit", offsetof(T, hit), H5T_STD_U32LE},
                              {"length", offsetof(T, length), H5T_STD_I64LE, "token"},
                              {"fact", offsetof(T, fact), H5T_STD_I64LE, "token"},
                              {"position", offsetof(T, position), H5T_STD_I64LE, "token"},
                              {"loss", offsetof(T, loss), H5T_IEEE_F64LE}});
}

template <>
RowDescription describe_rows<RankRow>() {
  using T = RankRow;
  const auto words = text(64);
  const auto role = enumeration(kRoleNames);
  return describe(sizeof(T), {{"host", offsetof(T, host), words.get()},
                              {"rank", offsetof(T, rank), H5T_STD_I32LE},
                              {"world", offsetof(T, world), H5T_STD_I32LE},
                              {"local_rank", offsetof(T, local_rank), H5T_STD_I32LE},
                              {"role", offsetof(T, role), role.get()},
                              {"data", offsetof(T, data), H5T_STD_I32LE},
                              {"pipeline", offsetof(T, pipeline), H5T_STD_I32LE},
                              {"tensor", offsetof(T, tensor), H5T_STD_I32LE},
                              {"context", offsetof(T, context), H5T_STD_I32LE},
                              {"server", offsetof(T, server), H5T_STD_I32LE},
                              {"threads", offsetof(T, threads), H5T_STD_I32LE},
                              {"device", offsetof(T, device), words.get()},
                              {"peak_flops", offsetof(T, peak_flops), H5T_IEEE_F64LE, "FLOP/s"},
                              {"attention_kernel", offsetof(T, attention_kernel), words.get()}});
}

template <>
RowDescription describe_rows<StatusRow>() {
  using T = StatusRow;
  const auto state = enumeration(kStateNames);
  return describe(sizeof(T), {{"state", offsetof(T, state), state.get()},
                              {"signal", offsetof(T, signal), H5T_STD_I32LE},
                              {"last_step", offsetof(T, last_step), H5T_STD_I64LE},
                              {"n_events", offsetof(T, n_events), H5T_STD_U64LE},
                              {"n_dropped", offsetof(T, n_dropped), H5T_STD_U64LE},
                              {"writer_ns", offsetof(T, writer_ns), H5T_STD_I64LE, "ns"}});
}

template <>
RowDescription describe_rows<Name>() {
  return {text(kNameLength), {}};
}

}  // namespace cadenza::trace
