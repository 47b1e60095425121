#include "core/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "core/files.hpp"
#include "core/status.hpp"
#include "core/text.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kLargestHeader = std::uint64_t{16} << 20;
constexpr std::size_t kLongestName = 256;
constexpr std::size_t kMostTensors = 65536;
constexpr std::size_t kAlignment = 64;
constexpr std::string_view kMetadata = "__metadata__";

// What the header says of one tensor; offsets count from the start of the data.
struct Entry {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Takes the header apart as the JSON parser walks over it, so that nothing is built that the format
// does not know, and duplicate keys are seen.
class HeaderParser final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderParser(std::string_view where) : where_(where) {}

  Header take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) return go(Place::file);
    if (place_ == Place::tensor_value) {
      seen_fields_ = {};
      header_.entries.push_back(Entry{name_, {}, {}, 0, 0});
      return go(Place::tensor);
    }
    if (place_ == Place::metadata_value) return go(Place::metadata);
    refuse("an object where none belongs");
  }

  bool end_object() override {
    if (place_ == Place::metadata) return go(Place::file);
    if (place_ == Place::tensor) {
      for (std::size_t i = 0; i < kFields.size(); ++i) {
        if (!seen_fields_[i]) refuse(fmt::format("no {}", kFields[i]));
      }
      return go(Place::file);
    }
    name_.clear();
    return go(Place::done);
  }

  bool key(string_t& value) override {
    if (place_ == Place::file) return file_key(value);
    if (place_ == Place::metadata) {
      if (!metadata_keys_.insert(value).second) {
        refuse(fmt::format("the key {} stands twice", printable(value)));
      }
      header_.metadata.emplace_back(value, "");
      return go(Place::metadata_string);
    }
    return tensor_key(value);
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata_string) {
      header_.metadata.back().second = value;
      return go(Place::metadata);
    }
    if (place_ != Place::dtype) refuse("a string where none belongs");
    const std::optional<Dtype> dtype = parse_dtype(value);
    // parse_dtype also knows our lower-case names, which the format does not.
    if (!dtype || std::any_of(value.begin(), value.end(), [](char c) { return c > 'Z'; })) {
      fail(Status::unsupported,
           "[safetensors] {}: tensor {} has dtype {} (F64, F32, BF16, F16, "
           "I64, I32, U32 or U16)",
           where_, printable(name_), printable(value));
    }
    entry().dtype = *dtype;
    return go(Place::tensor);
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_value) return go(Place::shape);
    if (place_ == Place::offsets_value) return go(Place::offsets);
    refuse("a list where none belongs");
  }

  bool end_array() override {
    if (place_ == Place::shape) {
      entry().shape = Shape(std::span<const std::int64_t>(extents_));
    } else {
      if (offsets_.size() != 2) refuse("data_offsets are not two numbers");
      entry().begin = offsets_[0];
      entry().end = offsets_[1];
    }
    return go(Place::tensor);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (extents_.size() == kMaxRank) refuse(fmt::format("more than {} axes", kMaxRank));
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse(fmt::format("an axis of {}", value));
      }
      extents_.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets && offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      refuse("a number where none belongs");
    }
    return true;
  }

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("true or false"); }
  bool number_integer(number_integer_t) override { refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    refuse("a number that is no unsigned 64-bit integer");
  }
  bool binary(binary_t&) override { refuse("binary"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail(Status::corrupt, "[safetensors] {}: the header is not JSON at its byte {}", where_,
         position);
  }

 private:
  enum class Place {
    outside,  // before the first brace
    file,
    metadata_value,
    metadata,
    metadata_string,
    tensor_value,
    tensor,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
    done,
  };
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  [[noreturn]] void refuse(std::string_view what) const {
    if (name_.empty()) fail(Status::corrupt, "[safetensors] {}: the header holds {}", where_, what);
    fail(Status::corrupt, "[safetensors] {}: the header entry {} holds {}", where_,
         printable(name_), what);
  }

  bool go(Place place) {
    place_ = place;
    return true;
  }

  Entry& entry() { return header_.entries.back(); }

  bool file_key(const std::string& value) {
    name_ = value.substr(0, kLongestName);
    if (!names_.insert(value).second) {
      fail(Status::corrupt, "[safetensors] {}: {} stands twice in the header", where_,
           printable(value));
    }
    if (value == kMetadata) return go(Place::metadata_value);
    if (value.empty() || value.size() > kLongestName || !control_free(value)) {
      fail(Status::corrupt,
           "[safetensors] {}: the tensor name {} of {} bytes (1 to {} bytes, no "
           "control characters)",
           where_, printable(value), value.size(), kLongestName);
    }
    if (header_.entries.size() == kMostTensors) {
      fail(Status::corrupt, "[safetensors] {}: more than {} tensors", where_, kMostTensors);
    }
    return go(Place::tensor_value);
  }

  bool tensor_key(const std::string& value) {
    const auto found = std::find(kFields.begin(), kFields.end(), value);
    if (found == kFields.end()) refuse(fmt::format("the unknown field {}", printable(value)));
    const auto field = static_cast<std::size_t>(found - kFields.begin());
    if (seen_fields_[field]) refuse(fmt::format("{} twice", value));
    seen_fields_[field] = true;
    extents_.clear();
    offsets_.clear();
    constexpr std::array<Place, 3> kNext{Place::dtype, Place::shape_value, Place::offsets_value};
    return go(kNext[field]);
  }

  std::string_view where_;
  Place place_ = Place::outside;
  Header header_;
  std::string name_;  // of the entry being read
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::array<bool, 3> seen_fields_{};
  std::vector<std::int64_t> extents_;
  std::vector<std::uint64_t> offsets_;
};

// Bytes of a tensor; fails where they, or the strides of a shape with an empty axis, overflow.
std::uint64_t data_bytes(const Entry& entry, std::string_view where) {
  std::uint64_t bytes = size_of(entry.dtype);
  bool empty = false;
  for (int i = 0; i < entry.shape.rank(); ++i) {
    const auto extent = static_cast<std::uint64_t>(entry.shape[i]);
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, std::max<std::uint64_t>(extent, 1), &bytes) ||
        bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(Status::corrupt, "[safetensors] {}: the shape {} of {} overflows", where,
           entry.shape.str(), printable(entry.name));
    }
  }
  return empty ? 0 : bytes;
}

// Shapes agree with ranges, and the ranges cover `data_size` bytes once, without gaps.
void check_ranges(const std::vector<Entry>& entries, std::uint64_t data_size,
                  std::string_view where) {
  std::vector<const Entry*> by_offset;
  for (const Entry& entry : entries) {
    if (entry.begin > entry.end || entry.end > data_size ||
        entry.end - entry.begin != data_bytes(entry, where)) {
      fail(Status::corrupt,
           "[safetensors] {}: tensor {} of shape {} and dtype {} has data_offsets "
           "[{}, {}] in {} bytes of data",
           where, printable(entry.name), entry.shape.str(), name(entry.dtype), entry.begin,
           entry.end, data_size);
    }
    by_offset.push_back(&entry);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const Entry* entry : by_offset) {
    if (entry->begin != covered) {
      fail(Status::corrupt,
           "[safetensors] {}: the data of {} begins at {} (at {}: no gap, no "
           "overlap)",
           where, printable(entry->name), entry->begin, covered);
    }
    covered = entry->end;
  }
  if (covered != data_size) {
    fail(Status::corrupt, "[safetensors] {}: {} bytes of data, the tensors have {}", where,
         data_size, covered);
  }
}

// Fills a buffer from an offset in the file.
using Source = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;

TensorFile read_from(const Source& read, std::uint64_t size, std::string_view where) {
  std::array<std::byte, 8> prefix{};
  if (size < prefix.size()) {
    fail(Status::corrupt, "[safetensors] {}: {} bytes are too few for a header", where, size);
  }
  read(0, prefix);
  std::uint64_t header_size = 0;
  for (std::size_t i = 8; i-- > 0;) {
    header_size = header_size << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  }
  if (header_size > kLargestHeader || header_size > size - prefix.size()) {
    fail(Status::corrupt, "[safetensors] {}: a header of {} bytes in a file of {} (at most {})",
         where, header_size, size, kLargestHeader);
  }
  std::string text(static_cast<std::size_t>(header_size), '\0');
  read(prefix.size(), std::as_writable_bytes(std::span<char>(text.data(), text.size())));
  // The JSON library skips a byte-order mark and takes a NUL for the end of the text.
  if (text.empty() || text.front() != '{' || text.find('\0') != std::string::npos) {
    fail(Status::corrupt, "[safetensors] {}: the header is no JSON object", where);
  }
  HeaderParser parser(where);
  json::sax_parse(text, &parser);
  Header header = parser.take();
  const std::uint64_t data_start = prefix.size() + header_size;
  check_ranges(header.entries, size - data_start, where);

  TensorFile file;
  file.metadata = std::move(header.metadata);
  file.tensors.reserve(header.entries.size());
  for (Entry& entry : header.entries) {
    Tensor tensor = Tensor::empty(entry.shape, entry.dtype);
    read(data_start + entry.begin, {static_cast<std::byte*>(tensor.raw()),
                                    static_cast<std::size_t>(entry.end - entry.begin)});
    file.add(std::move(entry.name), std::move(tensor));
  }
  return file;
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return result;
}

void check_writable(const TensorFile& file) {
  require(file.tensors.size() <= kMostTensors, "[safetensors] {} tensors (at most {})",
          file.tensors.size(), kMostTensors);
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : file.tensors) {
    require(!name.empty() && name.size() <= kLongestName && name != kMetadata &&
                control_free(name) && utf8_error(name) == name.size(),
            "[safetensors] {} can not name a tensor (UTF-8, 1 to {} bytes, no control characters)",
            printable(name), kLongestName);
    require(names.insert(name).second, "[safetensors] two tensors named {}", printable(name));
    require(tensor.defined(), "[safetensors] tensor {} is absent", printable(name));
  }
  std::unordered_set<std::string_view> keys;
  for (const auto& [key, value] : file.metadata) {
    require(utf8_error(key) == key.size() && utf8_error(value) == value.size(),
            "[safetensors] the metadata {} is not UTF-8", printable(key));
    require(keys.insert(key).second, "[safetensors] two metadata keys {}", printable(key));
  }
}

std::string quote(std::string_view text) { return json(text).dump(); }

// Length prefix and JSON, padded with spaces so that the data starts at a multiple of 64.
std::string format_header(const TensorFile& file) {
  check_writable(file);
  std::string text(8, '\0');
  text += '{';
  if (!file.metadata.empty()) {
    std::string pairs;
    for (const auto& [key, value] : file.metadata) {
      pairs += (pairs.empty() ? "" : ",") + quote(key) + ":" + quote(value);
    }
    text += fmt::format("\"{}\":{{{}}}", kMetadata, pairs);
  }
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    std::string extents;
    for (int i = 0; i < tensor.rank(); ++i) {
      extents += (i > 0 ? "," : "") + std::to_string(tensor.dim(i));
    }
    const std::uint64_t end = checked_add(offset, tensor.bytes(), Status::invalid_argument);
    if (text.size() > 9) text += ',';
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quote(name),
                        upper(rankone::name(tensor.dtype())), extents, offset, end);
    offset = end;
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  const std::uint64_t header_size = text.size() - 8;
  require(header_size <= kLargestHeader, "[safetensors] a header of {} bytes (at most {})",
          header_size, kLargestHeader);
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header_size >> 8 * i & 0xffU);
  return text;
}

// Calls take(bytes) for the header and each tensor.
template <class Take>
void format_pieces(const TensorFile& file, Take&& take) {
  const std::string header = format_header(file);
  take(std::as_bytes(std::span<const char>(header.data(), header.size())));
  for (const auto& [name, tensor] : file.tensors) {
    const Tensor packed = tensor.contiguous() ? tensor : tensor.clone();
    take(std::span<const std::byte>(static_cast<const std::byte*>(packed.raw()), packed.bytes()));
  }
}

}  // namespace

const Tensor* TensorFile::find(std::string_view name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const auto& pair) { return pair.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

const Tensor& TensorFile::at(std::string_view name) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) fail(Status::corrupt, "[safetensors] no tensor {}", printable(name));
  return *tensor;
}

TensorFile parse_safetensors(std::span<const std::byte> bytes, std::string_view where) {
  const Source read = [bytes](std::uint64_t offset, std::span<std::byte> into) {
    // Empty spans may have no address, which memcpy must not see.
    if (!into.empty()) std::memcpy(into.data(), bytes.data() + offset, into.size());
  };
  return read_from(read, bytes.size(), where);
}

TensorFile read_safetensors(const fs::path& file) {
  const FileReader reader(file);
  const Source read = [&reader](std::uint64_t offset, std::span<std::byte> into) {
    reader.read(offset, into);
  };
  return read_from(read, reader.size(), file.string());
}

std::string format_safetensors(const TensorFile& file) {
  std::string text;
  format_pieces(file, [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return text;
}

void write_safetensors(const fs::path& path, const TensorFile& file) {
  AtomicFile atomic(path);
  format_pieces(file, [&](std::span<const std::byte> bytes) { atomic.write(bytes); });
  atomic.commit();
}

}  // namespace rankone
