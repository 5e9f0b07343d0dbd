// SPDX-License-Identifier: Apache-2.0
// Field names and types of the rows; offsets come from the structs.
#include <bit>
#include <cstddef>
#include <initializer_list>

#include "schema.hpp"

namespace cadenza::trace {
namespace {

static_assert(std::endian::native == std::endian::little, "rows are written as they lie in memory");
static_assert(sizeof(MemorySample) == 80 && sizeof(MemoryHighwater) == 72);
static_assert(sizeof(StepRecord) == 112 && sizeof(ClockSync) == 32 && sizeof(PlannedTask) == 72);
static_assert(sizeof(PlannedStage) == 72);
static_assert(sizeof(RankRow) == 240 && sizeof(StatusRow) == 40);

struct Field {
  const char* name;
  std::size_t offset;
  hid_t type;
};

storage::Handle compound(std::size_t size, std::initializer_list<Field> fields) {
  storage::Handle type(H5Tcreate(H5T_COMPOUND, size), H5Tclose);
  for (const Field& field : fields) H5Tinsert(type.get(), field.name, field.offset, field.type);
  return type;
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

}  // namespace

template <>
storage::Handle row_type<Event>() {
  using T = Event;
  return compound(sizeof(T), {{"t_begin_ns", offsetof(T, t_begin_ns), H5T_STD_I64LE},
                              {"t_end_ns", offsetof(T, t_end_ns), H5T_STD_I64LE},
                              {"bytes", offsetof(T, bytes), H5T_STD_I64LE},
                              {"flops", offsetof(T, flops), H5T_IEEE_F64LE},
                              {"t_enq_ns", offsetof(T, t_enq_ns), H5T_STD_I64LE},
                              {"step", offsetof(T, step), H5T_STD_U32LE},
                              {"peer", offsetof(T, peer), H5T_STD_I32LE},
                              {"flow", offsetof(T, flow), H5T_STD_U32LE},
                              {"name_id", offsetof(T, name_id), H5T_STD_U16LE},
                              {"mb", offsetof(T, microbatch), H5T_STD_I16LE},
                              {"layer", offsetof(T, layer), H5T_STD_I16LE},
                              {"doc", offsetof(T, document), H5T_STD_I16LE},
                              {"cat", offsetof(T, category), H5T_STD_U8LE},
                              {"phase", offsetof(T, phase), H5T_STD_U8LE},
                              {"lane", offsetof(T, lane), H5T_STD_U8LE},
                              {"flags", offsetof(T, flags), H5T_STD_U8LE},
                              {"tick", offsetof(T, tick), H5T_STD_I32LE},
                              {"stage", offsetof(T, stage), H5T_STD_I16LE},
                              {"half", offsetof(T, half), H5T_STD_I8LE},
                              {"still_ns", offsetof(T, still_ns), H5T_STD_I64LE}});
}

template <>
storage::Handle row_type<MemorySample>() {
  using T = MemorySample;
  const auto columns = kinds();
  return compound(sizeof(T), {{"t_ns", offsetof(T, t_ns), H5T_STD_I64LE},
                              {"step", offsetof(T, step), H5T_STD_U32LE},
                              {"bytes", offsetof(T, bytes), columns.get()},
                              {"host_rss", offsetof(T, host_rss), H5T_STD_I64LE}});
}

template <>
storage::Handle row_type<MemoryHighwater>() {
  using T = MemoryHighwater;
  const auto columns = kinds();
  return compound(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"peak", offsetof(T, peak), columns.get()},
                              {"peak_total", offsetof(T, peak_total), H5T_STD_I64LE}});
}

template <>
storage::Handle row_type<StepRecord>() {
  using T = StepRecord;
  return compound(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"docs", offsetof(T, documents), H5T_STD_U32LE},
                              {"t_begin", offsetof(T, t_begin_ns), H5T_STD_I64LE},
                              {"t_end", offsetof(T, t_end_ns), H5T_STD_I64LE},
                              {"tokens", offsetof(T, tokens), H5T_STD_I64LE},
                              {"sum_len2", offsetof(T, sum_length2), H5T_IEEE_F64LE},
                              {"model_flops", offsetof(T, model_flops), H5T_IEEE_F64LE},
                              {"executed_flops", offsetof(T, executed_flops), H5T_IEEE_F64LE},
                              {"loss", offsetof(T, loss), H5T_IEEE_F64LE},
                              {"grad_norm", offsetof(T, gradient_norm), H5T_IEEE_F64LE},
                              {"lr", offsetof(T, learning_rate), H5T_IEEE_F64LE},
                              {"n_events_end", offsetof(T, n_events_end), H5T_STD_U64LE},
                              {"bytes_sent", offsetof(T, bytes_sent), H5T_STD_I64LE},
                              {"bytes_recv", offsetof(T, bytes_received), H5T_STD_I64LE},
                              {"machine_s", offsetof(T, machine_seconds), H5T_IEEE_F64LE}});
}

template <>
storage::Handle row_type<ClockSync>() {
  using T = ClockSync;
  return compound(sizeof(T), {{"t_local_ns", offsetof(T, t_local_ns), H5T_STD_I64LE},
                              {"offset_ns", offsetof(T, offset_ns), H5T_STD_I64LE},
                              {"rtt_min_ns", offsetof(T, rtt_min_ns), H5T_STD_I64LE},
                              {"n_ping", offsetof(T, pings), H5T_STD_U32LE},
                              {"phase", offsetof(T, phase), H5T_STD_U32LE}});
}

template <>
storage::Handle row_type<PlannedTask>() {
  using T = PlannedTask;
  return compound(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"tick", offsetof(T, tick), H5T_STD_I32LE},
                              {"doc", offsetof(T, document), H5T_STD_I32LE},
                              {"home", offsetof(T, home), H5T_STD_I32LE},
                              {"server", offsetof(T, server), H5T_STD_I32LE},
                              {"stage", offsetof(T, stage), H5T_STD_I32LE},
                              {"q_begin", offsetof(T, q_begin), H5T_STD_I64LE},
                              {"q_end", offsetof(T, q_end), H5T_STD_I64LE},
                              {"k_begin", offsetof(T, k_begin), H5T_STD_I64LE},
                              {"k_end", offsetof(T, k_end), H5T_STD_I64LE},
                              {"cost", offsetof(T, cost_flops), H5T_IEEE_F64LE},
                              {"half", offsetof(T, half), H5T_STD_I32LE}});
}

template <>
storage::Handle row_type<PlannedStage>() {
  using T = PlannedStage;
  return compound(sizeof(T), {{"step", offsetof(T, step), H5T_STD_U32LE},
                              {"tick", offsetof(T, tick), H5T_STD_I32LE},
                              {"half", offsetof(T, half), H5T_STD_I32LE},
                              {"phase", offsetof(T, phase), H5T_STD_U32LE},
                              {"stage", offsetof(T, stage), H5T_STD_I32LE},
                              {"server", offsetof(T, server), H5T_STD_I32LE},
                              {"tasks", offsetof(T, tasks), H5T_STD_I32LE},
                              {"messages_in", offsetof(T, messages_in), H5T_STD_I32LE},
                              {"cost", offsetof(T, cost_flops), H5T_IEEE_F64LE},
                              {"bytes_in", offsetof(T, bytes_in), H5T_STD_I64LE},
                              {"bytes_out", offsetof(T, bytes_out), H5T_STD_I64LE},
                              {"attend_s", offsetof(T, attend_seconds), H5T_IEEE_F64LE},
                              {"receive_s", offsetof(T, receive_seconds), H5T_IEEE_F64LE}});
}

template <>
storage::Handle row_type<RankRow>() {
  using T = RankRow;
  const auto words = text(64);
  return compound(sizeof(T), {{"host", offsetof(T, host), words.get()},
                              {"rank", offsetof(T, rank), H5T_STD_I32LE},
                              {"world", offsetof(T, world), H5T_STD_I32LE},
                              {"local_rank", offsetof(T, local_rank), H5T_STD_I32LE},
                              {"role", offsetof(T, role), H5T_STD_U32LE},
                              {"data", offsetof(T, data), H5T_STD_I32LE},
                              {"pipeline", offsetof(T, pipeline), H5T_STD_I32LE},
                              {"tensor", offsetof(T, tensor), H5T_STD_I32LE},
                              {"context", offsetof(T, context), H5T_STD_I32LE},
                              {"server", offsetof(T, server), H5T_STD_I32LE},
                              {"threads", offsetof(T, threads), H5T_STD_I32LE},
                              {"device", offsetof(T, device), words.get()},
                              {"peak_flops", offsetof(T, peak_flops), H5T_IEEE_F64LE},
                              {"attention_kernel", offsetof(T, attention_kernel), words.get()}});
}

template <>
storage::Handle row_type<StatusRow>() {
  using T = StatusRow;
  return compound(sizeof(T), {{"state", offsetof(T, state), H5T_STD_U32LE},
                              {"signal", offsetof(T, signal), H5T_STD_I32LE},
                              {"last_step", offsetof(T, last_step), H5T_STD_I64LE},
                              {"n_events", offsetof(T, n_events), H5T_STD_U64LE},
                              {"n_dropped", offsetof(T, n_dropped), H5T_STD_U64LE},
                              {"writer_ns", offsetof(T, writer_ns), H5T_STD_I64LE}});
}

template <>
storage::Handle row_type<Name>() {
  return text(kNameLength);
}

}  // namespace cadenza::trace
