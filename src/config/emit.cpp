// SPDX-License-Identifier: Apache-2.0
// Writes an Experiment or a Machine as YAML: every key, in the order of the schema.
#include <cmath>
#include <concepts>
#include <type_traits>

#include <fmt/format.h>

#include "cadenza/config/load.hpp"
#include "config/machine_schema.hpp"
#include "config/words.hpp"

namespace cadenza::config {
namespace {

std::string emit(bool value) {
  return value ? "true" : "false";
}

/// Text, always in quotes, so that no reader takes a name such as `2024` or `no` for another type.
std::string emit(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += fmt::format("\\{}", c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  return text + '"';
}

std::string emit(const std::string& value, MayBeEmpty) {
  return emit(value);
}

template <typename Choice>
requires std::is_enum_v<Choice> std::string emit(Choice choice) {
  return std::string(word(choice));
}

template <std::integral T>
std::string emit(T value, const Interval<T>&) {
  return fmt::format("{}", value);
}

std::string emit(std::int64_t value, const Bytes& bytes) {
  return emit(value, bytes.range);
}

/// The shortest digits that read back to the same bits, with the point that YAML 1.1 requires in a
/// number.
std::string emit(double value, const Numbers&) {
  std::string text = fmt::format("{}", value);
  if (text.find('.') == std::string::npos) {
    text.insert(std::min(text.find('e'), text.size()), ".0");
  }
  return text;
}

std::string emit(std::int64_t servers, const ServerCount&) {
  return servers == 0 ? std::string(kInPlace) : fmt::format("{}", servers);
}

template <typename Field, typename... Spec>
std::string emit(const Field& field, const OrAuto<Spec...>& choice) {
  if (choice.open) return std::string(kAuto);
  return std::apply([&](const Spec&... spec) { return emit(field, spec...); }, choice.spec);
}

template <typename T, typename... Spec>
std::string emit(const std::optional<T>& field, const AutoOr<Spec...>& choice) {
  if (!field) return std::string(kAuto);
  return std::apply([&](const Spec&... spec) { return emit(*field, spec...); }, choice.spec);
}

template <std::size_t N>
std::string emit(const std::array<double, N>& row, const Numbers& range) {
  std::string text;
  for (const double value : row) text += (text.empty() ? "" : ", ") + emit(value, range);
  return '[' + text + ']';
}

/// A table, one row per line.
template <std::size_t N>
std::string emit(const std::vector<std::array<double, N>>& rows, const Numbers& range) {
  std::string text;
  for (const auto& row : rows) text += (text.empty() ? "" : ",\n      ") + emit(row, range);
  return '[' + text + ']';
}

template <typename T, typename... Spec>
std::string emit(const std::vector<T>& values, const Spec&... spec) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + emit(value, spec...);
  return '[' + text + ']';
}

/// The visitor that writes a block, one key per line.
class Writer {
 public:
  template <typename Field, typename... Spec>
  void key(const char* name, const Field& field, const Spec&... spec) {
    text_ += fmt::format("{:{}}{}: {}\n", "", indent_, name, emit(field, spec...));
  }
  template <typename Field, typename... Spec>
  void required(const char* name, const Field& field, const char*, const Spec&... spec) {
    key(name, field, spec...);
  }
  void stand_in(const char*) {}
  template <typename Struct>
  void block(const char* name, Struct& fields) {
    text_ += fmt::format("{:{}}{}:\n", "", indent_, name);
    indent_ += 2;
    describe(*this, fields);
    indent_ -= 2;
  }
  template <typename Struct>
  void blocks(const char* name, std::vector<Struct>& list) {
    text_ += fmt::format("{:{}}{}:{}\n", "", indent_, name, list.empty() ? " []" : "");
    for (Struct& fields : list) {
      const std::size_t dash = text_.size() + static_cast<std::size_t>(indent_) + 2;
      indent_ += 4;
      describe(*this, fields);
      indent_ -= 4;
      text_[dash] = '-';
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int indent_ = 0;
};

/// Takes `file` by value because the schema visits non-const fields.
template <typename File>
std::string write_file(File file) {
  Writer writer;
  describe(writer, file);
  return writer.text();
}

}  // namespace

std::string to_yaml(const Experiment& experiment) {
  return write_file(experiment);
}

std::string to_yaml(const Machine& machine) {
  return write_file(machine);
}

}  // namespace cadenza::config
