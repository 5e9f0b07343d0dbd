// SPDX-License-Identifier: Apache-2.0
// The one file that includes cudnn-frontend, which is slow to compile: without Kokkos, and for the
// host's compiler.
#ifdef CADENZA_CUDNN

#include "graph.hpp"

#define CUDNN_FRONTEND_SKIP_JSON_LIB  // graphs are not written to files
#include <cudnn_frontend.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cadenza/base/error.hpp"

namespace cadenza::kernels::cudnn {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Names of a graph's tensors.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

struct Rows {
  std::int64_t heads = 0, rows = 0, dim = 0, row = 0;  ///< row: elements from one to the next
};

Rows query_rows(const SdpaShape& shape, std::int64_t row) {
  return {shape.heads, shape.queries, shape.head_dim, row};
}

Rows key_rows(const SdpaShape& shape, std::int64_t row) {
  return {shape.kv_heads, shape.keys, shape.head_dim, row};
}

std::int64_t packed_query(const SdpaShape& shape) {
  return std::int64_t{shape.heads} * shape.head_dim;
}

std::int64_t packed_key(const SdpaShape& shape) {
  return std::int64_t{shape.kv_heads} * shape.head_dim;
}

/// Rows of [heads, dim] as one sequence of [batch, heads, rows, dim].
void set_rows(const Tensor& tensor, Uid uid, const Rows& of) {
  tensor->set_uid(uid)
      .set_dim({1, of.heads, of.rows, of.dim})
      .set_stride({of.rows * of.row, of.dim, of.row, 1})
      .set_data_type(fe::DataType_t::BFLOAT16);
}

Tensor input(Graph& graph, Uid uid, const Rows& of) {
  Tensor tensor = graph.tensor(fe::graph::Tensor_attributes());
  set_rows(tensor, uid, of);
  return tensor;
}

void set_output(const Tensor& tensor, Uid uid, const Rows& of) {
  tensor->set_output(true);
  set_rows(tensor, uid, of);
}

void set_stats(const Tensor& tensor, const SdpaShape& shape) {
  tensor->set_uid(kStats)
      .set_dim({1, shape.heads, shape.queries, 1})
      .set_stride({shape.heads * shape.queries, shape.queries, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

template <typename Options>
void set_options(Options& options, const SdpaShape& shape) {
  options.set_name("attention")
      .set_attn_scale(static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim))));
  if (!shape.causal && shape.left == 0) return;
  // A square has one diagonal; from the top left more of cuDNN's engines know it.
  options.set_diagonal_alignment(shape.queries == shape.keys
                                     ? fe::DiagonalAlignment_t::TOP_LEFT
                                     : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
  if (shape.causal) options.set_diagonal_band_right_bound(0);
  if (shape.left > 0) options.set_diagonal_band_left_bound(static_cast<int>(shape.left));
}

struct Inputs {
  Tensor q, k, v;
};

Inputs inputs(Graph& graph, const SdpaShape& shape) {
  return {input(graph, kQ, query_rows(shape, shape.q_row)),
          input(graph, kK, key_rows(shape, shape.k_row)),
          input(graph, kV, key_rows(shape, shape.k_row))};
}

void describe_forward(Graph& graph, const SdpaShape& shape) {
  fe::graph::SDPA_attributes options;
  set_options(options, shape);
  options.set_generate_stats(true);
  const auto [q, k, v] = inputs(graph, shape);
  const auto [out, stats] = graph.sdpa(q, k, v, options);
  set_output(out, kOut, query_rows(shape, packed_query(shape)));
  stats->set_output(true);
  set_stats(stats, shape);
}

void describe_backward(Graph& graph, const SdpaShape& shape) {
  fe::graph::SDPA_backward_attributes options;
  set_options(options, shape);
  options.set_deterministic_algorithm(true);
  const auto [q, k, v] = inputs(graph, shape);
  const Tensor out = input(graph, kOut, query_rows(shape, packed_query(shape)));
  const Tensor dout = input(graph, kDout, query_rows(shape, shape.q_row));
  const Tensor stats = graph.tensor(fe::graph::Tensor_attributes());
  set_stats(stats, shape);
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, stats, options);
  set_output(dq, kDq, query_rows(shape, packed_query(shape)));
  set_output(dk, kDk, key_rows(shape, packed_key(shape)));
  set_output(dv, kDv, key_rows(shape, packed_key(shape)));
}

/// `sm`: the architecture; 0: the device's.
std::unique_ptr<Graph> described(Pass pass, const SdpaShape& shape, int sm = 0) {
  auto graph = std::make_unique<Graph>();
  if (sm > 0) graph->set_sm_version(sm);
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (pass == Pass::forward) {
    describe_forward(*graph, shape);
  } else {
    describe_backward(*graph, shape);
  }
  return graph;
}

/// The first of cuDNN's words, which may be pages, as one line.
std::string words(fe::error_t error) {
  constexpr std::size_t kMost = 400;
  std::string text = error.get_message().substr(0, kMost);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string name(Pass pass, const SdpaShape& shape) {
  return fmt::format("{} of {} queries and {} keys, {} and {} heads of {}{}{}",
                     pass == Pass::forward ? "forward" : "backward", shape.queries, shape.keys,
                     shape.heads, shape.kv_heads, shape.head_dim, shape.causal ? ", causal" : "",
                     shape.left > 0 ? fmt::format(", {} keys to the left", shape.left) : "");
}

cudnnHandle_t handle() {
  // Never destroyed: the driver may end before static objects do.
  static const cudnnHandle_t instance = [] {
    cudnnHandle_t made = nullptr;
    const cudnnStatus_t status = cudnnCreate(&made);
    if (status != CUDNN_STATUS_SUCCESS) {
      fail(ExitCode::usage, "attention.kernel: cudnn: cudnnCreate: {}",
           cudnnGetErrorString(status));
    }
    return made;
  }();
  return instance;
}

Graph& plan(Pass pass, const SdpaShape& shape) {
  using Plans = std::map<std::pair<Pass, SdpaShape>, std::unique_ptr<Graph>>;
  static Plans& plans = *new Plans;  // as the handle
  std::unique_ptr<Graph>& found = plans[{pass, shape}];
  if (found == nullptr) {
    auto graph = described(pass, shape);
    const fe::error_t error = graph->build(handle(), {fe::HeurMode_t::A});
    if (error.is_bad()) {
      fail(ExitCode::usage, "attention.kernel: cudnn does not compute {}: {}", name(pass, shape),
           words(error));
    }
    found = std::move(graph);
  }
  return *found;
}

}  // namespace

std::size_t workspace_bytes(Pass pass, const SdpaShape& shape) {
  return static_cast<std::size_t>(plan(pass, shape).get_workspace_size());
}

void execute(Pass pass, const SdpaShape& shape, const SdpaRows& rows, void* workspace,
             cudaStream_t stream) {
  std::unordered_map<std::int64_t, void*> pointers;
  const auto add = [&](Uid uid, const void* data) { pointers[uid] = const_cast<void*>(data); };
  add(kQ, rows.q);
  add(kK, rows.k);
  add(kV, rows.v);
  add(kOut, rows.out);
  add(kStats, rows.stats);
  if (pass == Pass::backward) {
    add(kDout, rows.dout);
    add(kDq, rows.dq);
    add(kDk, rows.dk);
    add(kDv, rows.dv);
  }
  Graph& graph = plan(pass, shape);
  const cudnnStatus_t status = cudnnSetStream(handle(), stream);
  if (status != CUDNN_STATUS_SUCCESS) {
    fail(ExitCode::internal, "cudnnSetStream: {}", cudnnGetErrorString(status));
  }
  const fe::error_t error = graph.execute(handle(), pointers, workspace);
  if (error.is_bad()) fail(ExitCode::internal, "cuDNN, {}: {}", name(pass, shape), words(error));
}

std::string refusal(Pass pass, const SdpaShape& shape, const std::string& properties, int sm) {
  auto device = std::make_shared<fe::DeviceProperties>();
  fe::error_t error = device->deserialize({properties.begin(), properties.end()});
  const auto graph = described(pass, shape, sm);
  graph->set_device_properties(device);
  if (error.is_good()) error = graph->validate();
  if (error.is_good()) error = graph->build_operation_graph();
  if (error.is_good()) error = graph->create_execution_plans({fe::HeurMode_t::A});
  if (error.is_good()) error = graph->check_support();
  if (error.is_good()) error = graph->build_plans();
  return error.is_good() ? "" : words(error);
}

}  // namespace cadenza::kernels::cudnn

#endif
