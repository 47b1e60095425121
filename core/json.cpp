#include "core/json.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/status.hpp"
#include "core/text.hpp"

namespace rankone {
namespace {

// The text as strict JSON, and how to find a position of it in the original.
class Strict {
 public:
  explicit Strict(std::string_view original) : original_(original) {
    std::size_t kept = 0;  // original bytes up to here are in text_ or stood for
    bool in_string = false;
    for (std::size_t i = 0; i < original.size(); ++i) {
      const char letter = original[i];
      if (in_string) {
        if (letter == '\\') ++i;  // whatever follows is no end of the string
        if (letter == '"') in_string = false;
      } else if (letter == '"') {
        in_string = true;
      } else if (const std::string_view literal = literal_at(i); !literal.empty()) {
        text_ += original.substr(kept, i - kept);
        text_ += R"({"__float__": ")";
        text_ += literal;
        text_ += R"("})";
        i += literal.size() - 1;
        kept = i + 1;
        replaced_.push_back({text_.size(), kept});
      }
    }
    text_ += original.substr(kept);
  }

  const std::string& text() const { return text_; }

  // "line:column" in the original of the byte at `position` of text().
  std::string place(std::size_t position) const {
    std::size_t shift_strict = 0;
    std::size_t shift_original = 0;
    for (const Replaced& r : replaced_) {
      if (r.strict_end > position) break;
      shift_strict = r.strict_end;
      shift_original = r.original_end;
    }
    const std::size_t at = std::min(original_.size(), position - shift_strict + shift_original);
    const std::string_view before = original_.substr(0, at);
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 == 0
    return fmt::format("{}:{}", 1 + std::count(before.begin(), before.end(), '\n'),
                       at - line_start + 1);
  }

 private:
  struct Replaced {
    std::size_t strict_end;
    std::size_t original_end;
  };

  std::string_view literal_at(std::size_t at) const {
    static constexpr std::array<std::string_view, 3> kLiterals{"Infinity", "-Infinity", "NaN"};
    const auto is_word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '+' || c == '.';
    };
    if (at > 0 && is_word(original_[at - 1])) return {};
    for (const std::string_view literal : kLiterals) {
      const std::size_t end = at + literal.size();
      if (original_.substr(at, literal.size()) == literal &&
          (end == original_.size() || !is_word(original_[end]))) {
        return literal;
      }
    }
    return {};
  }

  std::string_view original_;
  std::string text_;
  std::vector<Replaced> replaced_;
};

// Builds the value; nlohmann's own builder lets the last of two equal keys win, silently.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(const JsonLimits& limits, std::string_view where) : limits_(limits), where_(where) {}

  Json take() { return std::move(root_); }
  // What the parser complained about, and the byte before which.
  const std::string& complaint() const { return complaint_; }
  std::size_t position() const { return position_; }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // never in text

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (open_.back()->contains(value)) {
      fail(Status::corrupt, "[json] {}: the key {} stands twice in one object", where_,
           printable(value));
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    position_ = position;
    // "[json.exception...] parse error at line L, column C: DETAIL; last read: '...'"
    std::string_view text = error.what();
    if (const std::size_t head = text.find(": "); head != std::string_view::npos) {
      text.remove_prefix(head + 2);
    } else if (const std::size_t bracket = text.find("] "); bracket != std::string_view::npos) {
      text.remove_prefix(bracket + 2);
    }
    complaint_ = text.substr(0, std::min(text.find("; last read"), std::size_t{160}));
    return false;
  }

 private:
  template <class Value>
  bool put(Value&& value) {
    place(Json(std::forward<Value>(value)));
    return true;
  }

  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }

  // The pointers stay valid: a parent gets no further element while a child is open.
  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      fail(Status::corrupt, "[json] {}: nested deeper than {}", where_, limits_.depth);
    }
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  std::string_view where_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  std::string complaint_ = "not JSON";
  std::size_t position_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    fail(Status::corrupt, "[json] {}: {} bytes are more than {}", where, text.size(), limits.bytes);
  }
  const Strict strict(text);
  // The library takes a NUL for the end of the text and would not look at the rest.
  if (const std::size_t nul = strict.text().find('\0'); nul != std::string::npos) {
    fail(Status::corrupt, "[json] {}:{}: a NUL byte", where, strict.place(nul));
  }
  Builder builder(limits, where);
  if (!Json::sax_parse(strict.text(), &builder)) {
    fail(Status::corrupt, "[json] {}:{}: {}", where,
         strict.place(builder.position() - std::min<std::size_t>(builder.position(), 1)),
         builder.complaint());
  }
  return builder.take();
}

}  // namespace rankone
