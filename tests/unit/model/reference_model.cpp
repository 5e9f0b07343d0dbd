// SPDX-License-Identifier: Apache-2.0
#include "unit/model/reference_model.hpp"

#include <cmath>
#include <complex>
#include <stdexcept>
#include <string>

namespace cadenza::model::test {
namespace {

using Vector = std::vector<double>;
using Size = std::size_t;

Size size(std::int64_t value) {
  return static_cast<Size>(value);
}

/// OrderedAccumulation [T, heads, D] by sign * position * theta^(-2d / D), pairs (d, d + D / 2).
void rotate(Vector& x, const config::Model& model, Size heads,
            const std::vector<std::int32_t>& positions, double sign) {
  const Size dim = size(model.head_dim());
  for (Size at = 0; at < x.size(); at += dim) {
    for (Size d = 0; d < dim / 2; ++d) {
      const double frequency =
          std::pow(model.rope.theta, -2.0 * static_cast<double>(d) / static_cast<double>(dim));
      const std::complex<double> turned =
          std::complex<double>(x[at + d], x[at + d + dim / 2]) *
          std::polar(1.0, sign * positions[at / (heads * dim)] * frequency);
      x[at + d] = turned.real();
      x[at + d + dim / 2] = turned.imag();
    }
  }
}

/// Probabilities of one query of one head over the keys of its document up to itself, and where
/// these rows begin.
struct Row {
  Size first_token = 0;
  Size query_at = 0;
  Size kv_stride = 0;
  Size kv_offset = 0;
  Vector p;
  Size key_at(Size j) const { return (first_token + j) * kv_stride + kv_offset; }
};

Row attend_row(const config::Model& model, const std::vector<std::int32_t>& positions,
               const Vector& rotated_q, const Vector& k, Size token, Size head) {
  const Size dim = size(model.head_dim());
  Row row;
  row.first_token = token - static_cast<Size>(positions[token]);
  row.query_at = (token * size(model.heads) + head) * dim;
  row.kv_stride = size(model.kv_heads) * dim;
  row.kv_offset = head / size(model.heads / model.kv_heads) * dim;
  double sum = 0;
  for (Size j = 0; row.first_token + j <= token; ++j) {
    double logit = 0;
    for (Size d = 0; d < dim; ++d) logit += rotated_q[row.query_at + d] * k[row.key_at(j) + d];
    row.p.push_back(std::exp(logit / std::sqrt(static_cast<double>(dim))));
    sum += row.p.back();
  }
  for (double& p : row.p) p /= sum;
  return row;
}

/// The model with its parameters by name.
class Reference {
 public:
  Reference(const config::Model& model, const ParameterTable& table, const Vector& values)
      : model_(model), table_(table), values_(values) {}

  ReferenceResult forward(const TokenBatch& batch) const {
    const Size width = size(model_.d_model);
    Vector x;
    const double* table = weight("model.embed_tokens.weight");
    for (const std::int32_t token : batch.tokens) {
      const double* row = table + static_cast<Size>(token) * width;
      x.insert(x.end(), row, row + width);
    }
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
      run_layer("model.layers." + std::to_string(layer) + ".", batch.positions, x);
    }
    ReferenceResult result;
    result.hidden = norm(x, "model.norm.weight");
    const Vector logits = project(
        result.hidden, model_.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
        model_.d_model, model_.vocab);
    result.loss = loss(logits, batch.targets);
    return result;
  }

 private:
  const double* weight(const std::string& name) const {
    for (const ParameterInfo& info : table_.entries) {
      if (info.name == name) return values_.data() + info.offset;
    }
    throw std::out_of_range(name);
  }

  void run_layer(const std::string& prefix, const std::vector<std::int32_t>& positions,
                 Vector& x) const {
    const std::int64_t width = model_.d_model, kv = model_.kv_heads * model_.head_dim();
    const std::int64_t queries = model_.heads * model_.head_dim();
    const Vector normed = norm(x, prefix + "input_layernorm.weight");
    AttentionInputs in{attention_input(normed, prefix + "self_attn.q_proj", queries),
                       attention_input(normed, prefix + "self_attn.k_proj", kv),
                       attention_input(normed, prefix + "self_attn.v_proj", kv)};
    if (model_.qk_norm) {
      in.q = norm(in.q, prefix + "self_attn.q_norm.weight", model_.head_dim());
      in.k = norm(in.k, prefix + "self_attn.k_norm.weight", model_.head_dim());
    }
    rotate(in.k, model_, size(model_.kv_heads), positions, 1);
    const Vector out = reference_attention(model_, positions, in);
    add(x, project(out, prefix + "self_attn.o_proj.weight", queries, width));
    const Vector middle = norm(x, prefix + "post_attention_layernorm.weight");
    Vector gate = project(middle, prefix + "mlp.gate_proj.weight", width, model_.ffn);
    const Vector up = project(middle, prefix + "mlp.up_proj.weight", width, model_.ffn);
    for (Size i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    add(x, project(gate, prefix + "mlp.down_proj.weight", model_.ffn, width));
  }

  Vector attention_input(const Vector& normed, const std::string& name, std::int64_t out) const {
    Vector y = project(normed, name + ".weight", model_.d_model, out);
    if (!model_.qkv_bias) return y;
    const double* bias = weight(name + ".bias");
    for (Size i = 0; i < y.size(); ++i) y[i] += bias[i % size(out)];
    return y;
  }

  Vector norm(const Vector& x, const std::string& name) const {
    return norm(x, name, model_.d_model);
  }
  Vector norm(const Vector& x, const std::string& name, std::int64_t columns) const {
    const Size width = size(columns);
    const double* w = weight(name);
    Vector y(x.size());
    for (Size row = 0; row < x.size(); row += width) {
      double mean = 0;
      for (Size c = 0; c < width; ++c) mean += x[row + c] * x[row + c] / static_cast<double>(width);
      for (Size c = 0; c < width; ++c) {
        y[row + c] = x[row + c] / std::sqrt(mean + model_.norm_eps) * w[c];
      }
    }
    return y;
  }

  /// x [T, in] times the transposed [out, in] weight.
  Vector project(const Vector& x, const std::string& name, std::int64_t in,
                 std::int64_t out) const {
    const double* w = weight(name);
    Vector y;
    y.reserve(x.size() / size(in) * size(out));
    for (Size row = 0; row < x.size(); row += size(in)) {
      for (Size o = 0; o < size(out); ++o) {
        double sum = 0;
        for (Size i = 0; i < size(in); ++i) sum += x[row + i] * w[o * size(in) + i];
        y.push_back(sum);
      }
    }
    return y;
  }

  static void add(Vector& x, const Vector& y) {
    for (Size i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  double loss(const Vector& logits, const std::vector<std::int32_t>& targets) const {
    double total = 0;
    for (Size row = 0; row < targets.size(); ++row) {
      if (targets[row] < 0) continue;
      const double* values = logits.data() + row * size(model_.vocab);
      double sum = 0;
      for (Size v = 0; v < size(model_.vocab); ++v) sum += std::exp(values[v]);
      total += std::log(sum) - values[targets[row]];
    }
    return total;
  }

  const config::Model& model_;
  const ParameterTable& table_;
  const Vector& values_;
};

}  // namespace

ReferenceResult reference_forward(const config::Model& model, const ParameterTable& table,
                                  const std::vector<double>& values, const TokenBatch& batch) {
  return Reference(model, table, values).forward(batch);
}

Vector reference_attention(const config::Model& model, const std::vector<std::int32_t>& positions,
                           const AttentionInputs& in) {
  Vector q = in.q;
  rotate(q, model, size(model.heads), positions, 1);
  Vector out(q.size(), 0.0);
  for (Size token = 0; token < positions.size(); ++token) {
    for (Size head = 0; head < size(model.heads); ++head) {
      const Row row = attend_row(model, positions, q, in.k, token, head);
      for (Size j = 0; j < row.p.size(); ++j) {
        for (Size d = 0; d < size(model.head_dim()); ++d) {
          out[row.query_at + d] += row.p[j] * in.v[row.key_at(j) + d];
        }
      }
    }
  }
  return out;
}

AttentionInputs reference_attention_gradient(const config::Model& model,
                                             const std::vector<std::int32_t>& positions,
                                             const AttentionInputs& in, const Vector& dout) {
  Vector q = in.q;
  rotate(q, model, size(model.heads), positions, 1);
  AttentionInputs gradient{Vector(q.size(), 0.0), Vector(in.k.size(), 0.0),
                           Vector(in.v.size(), 0.0)};
  const Size dim = size(model.head_dim());
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  for (Size token = 0; token < positions.size(); ++token) {
    for (Size head = 0; head < size(model.heads); ++head) {
      const Row row = attend_row(model, positions, q, in.k, token, head);
      Vector dp(row.p.size(), 0.0);
      double mean = 0;
      for (Size j = 0; j < row.p.size(); ++j) {
        for (Size d = 0; d < dim; ++d) {
          dp[j] += dout[row.query_at + d] * in.v[row.key_at(j) + d];
          gradient.v[row.key_at(j) + d] += row.p[j] * dout[row.query_at + d];
        }
        mean += row.p[j] * dp[j];
      }
      for (Size j = 0; j < row.p.size(); ++j) {
        const double dlogit = row.p[j] * (dp[j] - mean) * scale;
        for (Size d = 0; d < dim; ++d) {
          gradient.q[row.query_at + d] += dlogit * in.k[row.key_at(j) + d];
          gradient.k[row.key_at(j) + d] += dlogit * q[row.query_at + d];
        }
      }
    }
  }
  rotate(gradient.q, model, size(model.heads), positions, -1);
  return gradient;
}

}  // namespace cadenza::model::test
