#include "core/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "core/files.hpp"
#include "core/status.hpp"
#include "support/paths.hpp"
#include "tests/support/scratch.hpp"

namespace rankone {
namespace {

namespace fs = std::filesystem;
using test::Scratch;

std::string with_header(std::string_view header, std::size_t data_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    text[i] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * i & 0xffU);
  }
  text += header;
  for (std::size_t i = 0; i < data_bytes; ++i) text += static_cast<char>(i);
  return text;
}

TensorFile parse(std::string_view text) {
  return parse_safetensors(std::as_bytes(std::span<const char>(text.data(), text.size())), "file");
}

Status refusal(std::string_view text) {
  try {
    parse(text);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(message.rfind("[safetensors] file: ", 0), 0U) << message;
    return error.status();
  }
  return Status::ok;
}

// A header with the one entry `entry`, and 8 bytes of data.
Status refusal_of_entry(std::string_view entry) {
  return refusal(with_header("{\"a\":" + std::string(entry) + "}", 8));
}

TensorFile example() {
  TensorFile file;
  file.metadata = {{"format", "pt"}, {"z \"quoted\"", "l\xc3\xa9\n"}, {"a", ""}};
  const std::vector<float> values{1.5F, -2.0F, 3.25F};
  file.add("z.weight", Tensor::of<float>(values, {3, 1}));
  file.add("a", Tensor::zeros({}, Dtype::u16));
  file.add("empty", Tensor::zeros({0, 7}, Dtype::i64));
  file.add("m", Tensor::of<double>(std::vector<double>{0.1, 0.2}, {2}));
  file.add("bf", Tensor::of<float>(values, {3}).to(Dtype::bf16));
  file.add("half", Tensor::of<float>(values, {3}).to(Dtype::f16));
  file.add("i", Tensor::of<std::int32_t>(std::vector<std::int32_t>{-5}, {1}));
  file.add("u", Tensor::of<std::uint32_t>(std::vector<std::uint32_t>{5}, {1, 1, 1, 1, 1, 1, 1, 1}));
  return file;
}

TEST(Safetensors, WrittenFileIsReadBackByteForByte) {
  const std::string text = format_safetensors(example());
  const TensorFile file = parse(text);
  EXPECT_EQ(file.metadata, example().metadata);
  ASSERT_EQ(file.tensors.size(), 8U);
  EXPECT_EQ(file.tensors[0].first, "z.weight");
  EXPECT_EQ(file.at("z.weight").data<float>()[2], 3.25F);
  EXPECT_EQ(file.at("m").data<double>()[1], 0.2);
  EXPECT_EQ(file.at("empty").shape(), Shape({0, 7}));
  EXPECT_EQ(file.at("u").rank(), 8);
  EXPECT_EQ(format_safetensors(file), text);
  // The data starts at a multiple of 64.
  std::uint64_t header = 0;
  std::memcpy(&header, text.data(), 8);
  EXPECT_EQ((8 + header) % 64, 0U);

  const Scratch scratch;
  write_safetensors(scratch / "model.safetensors", file);
  EXPECT_EQ(read_file(scratch / "model.safetensors", 1 << 20), text);
  EXPECT_EQ(format_safetensors(read_safetensors(scratch / "model.safetensors")), text);
  EXPECT_EQ(format_safetensors(read_safetensors_model(scratch.path())), text);
  EXPECT_EQ(format_safetensors(parse(format_safetensors({}))), format_safetensors({}));
}

TEST(Safetensors, StridedTensorsAreWrittenRowMajor) {
  Tensor a = Tensor::zeros({2, 3}, Dtype::f32);
  for (int i = 0; i < 6; ++i) a.data<float>()[i] = static_cast<float>(i);
  TensorFile file;
  file.add("column", a.slice(1, 1, 2));
  const TensorFile again = parse(format_safetensors(file));
  EXPECT_EQ(again.at("column").data<float>()[0], 1);
  EXPECT_EQ(again.at("column").data<float>()[1], 4);
}

TEST(Safetensors, ReadsFilesOfOthers) {
  // No metadata, data at an odd place, header order unlike data order, white space.
  const TensorFile file =
      parse(with_header("{\"b\" : {\"data_offsets\":[4,8], \"shape\":[1],\"dtype\":\"I32\"},\n"
                        "\"a\":{\"dtype\":\"U16\",\"shape\":[2,1],\"data_offsets\":[0,4]}}   \n",
                        8));
  EXPECT_EQ(file.tensors[0].first, "b");
  EXPECT_EQ(file.at("b").data<std::int32_t>()[0], 0x07060504);
  EXPECT_EQ(file.at("a").data<std::uint16_t>()[1], 0x0302);
}

TEST(Safetensors, RefusesABadFrame) {
  EXPECT_EQ(refusal(""), Status::corrupt);
  EXPECT_EQ(refusal("1234567"), Status::corrupt);
  EXPECT_EQ(refusal(std::string(8, '\0')), Status::corrupt);                     // an empty header
  EXPECT_EQ(refusal(std::string(8, '\xff')), Status::corrupt);                   // a huge one
  EXPECT_EQ(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)), Status::corrupt);  // past the end
  std::string long_header = "{" + std::string((16 << 20) - 1, ' ') + "}";
  EXPECT_EQ(refusal(with_header(long_header, 0)), Status::corrupt);
  long_header.erase(1, 1);
  EXPECT_EQ(refusal(with_header(long_header, 0)), Status::ok);  // exactly 16 MiB
}

TEST(Safetensors, RefusesAHeaderThatIsNoObject) {
  for (const std::string& header : {std::string("[]"),
                                    std::string("1"),
                                    std::string("{"),
                                    std::string("{}}"),
                                    std::string("{} x"),
                                    std::string("\xef\xbb\xbf{}"),
                                    std::string("{}\0", 3),
                                    std::string("{\"a\":null}"),
                                    std::string("{\"a\":[]}"),
                                    std::string("{\"a\":1}"),
                                    std::string("{\"a\":\"x\"}"),
                                    std::string("{\"a\":true}"),
                                    std::string("{\"\xff\":{}}"),
                                    std::string("{\"__metadata__\":[]}"),
                                    std::string("{\"__metadata__\":{\"a\":1}}"),
                                    std::string("{\"__metadata__\":{\"a\":{}}}"),
                                    std::string("{\"__metadata__\":{\"a\":null}}"),
                                    std::string("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}"),
                                    std::string("{\"__metadata__\":{},\"__metadata__\":{}}"),
                                    std::string("{\"a\":{}}"),
                                    std::string(100'000, '{'),
                                    "{\"a\":" + std::string(100'000, '[')}) {
    EXPECT_EQ(refusal(with_header(header, 0)), Status::corrupt) << header.substr(0, 80);
  }
}

TEST(Safetensors, RefusesEachBadEntry) {
  EXPECT_EQ(refusal_of_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), Status::ok);
  for (const char* entry : {
           R"({"shape":[2],"data_offsets":[0,8]})",
           R"({"dtype":"F32","data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[2]})",
           R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1})",
           R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})",
           R"({"dtype":["F32"],"shape":[2],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":{},"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[2e0],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[true],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})",  // shape against range
           R"({"dtype":"F16","shape":[2],"data_offsets":[0,8]})",  // dtype against range
           R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})",  // rank 9
           R"({"dtype":"F32","shape":[2],"data_offsets":[0]})",
           R"({"dtype":"F32","shape":[2],"data_offsets":[]})",
           R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})",
           R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})",   // reversed
           R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})",  // past the end
           R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})",   // bytes left over
           R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})",   // a gap in front
           R"({"dtype":"F32","shape":[2],"data_offsets":[-0,8]})",
           R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551624]})",
           // Products that wrap to 8 bytes, and sizes beyond int64.
           R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]})",
           R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})",
           // No element, but strides that overflow.
           R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})",
       }) {
    EXPECT_EQ(refusal_of_entry(entry), Status::corrupt) << entry;
  }
  for (const char* dtype : {"F8_E4M3", "BOOL", "I8", "f32", "", "F32 "}) {
    EXPECT_EQ(refusal_of_entry("{\"dtype\":\"" + std::string(dtype) +
                               "\",\"shape\":[2],\"data_offsets\":[0,8]}"),
              Status::unsupported)
        << dtype;
  }
}

TEST(Safetensors, RefusesOverlapGapsAndDuplicates) {
  const auto two = [](const char* a, const char* b, const char* name = "b") {
    return refusal(with_header(
        std::string("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[") + a + "]},\"" +
            name + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" + b + "]}}",
        8));
  };
  EXPECT_EQ(two("0,4", "4,8"), Status::ok);
  EXPECT_EQ(two("4,8", "0,4"), Status::ok);
  EXPECT_EQ(two("0,4", "0,4"), Status::corrupt);
  EXPECT_EQ(two("0,4", "3,7"), Status::corrupt);
  EXPECT_EQ(two("0,4", "5,9"), Status::corrupt);
  EXPECT_EQ(two("0,4", "4,8", "a"), Status::corrupt);
  EXPECT_EQ(two("0,4", "4,8", "\\u0061"), Status::corrupt);  // the same name, written differently
  EXPECT_EQ(two("0,4", "4,8", ""), Status::corrupt);
  EXPECT_EQ(two("0,4", "4,8", "a\\nb"), Status::corrupt);
  EXPECT_EQ(two("0,4", "4,8", std::string(256, 'n').c_str()), Status::ok);
  EXPECT_EQ(two("0,4", "4,8", std::string(257, 'n').c_str()), Status::corrupt);
}

TEST(Safetensors, RefusesTooManyTensors) {
  const auto header = [](int count) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) {
      text += (i > 0 ? ",\"" : "\"") + std::to_string(i) +
              "\":{\"dtype\":\"U16\",\"shape\":[0],\"data_offsets\":[0,0]}";
    }
    return with_header(text + "}", 0);
  };
  EXPECT_EQ(refusal(header(65536)), Status::ok);
  EXPECT_EQ(refusal(header(65537)), Status::corrupt);
}

TEST(Safetensors, TruncationAnywhereIsRefused) {
  const std::string text = format_safetensors(example());
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(refusal(std::string_view(text).substr(0, size)), Status::corrupt) << size;
  }
  EXPECT_EQ(refusal(text + "x"), Status::corrupt);
}

TEST(Safetensors, RefusesToWriteWhatItWouldNotRead) {
  const auto fails = [](const std::string& name, const std::string& key = "k") {
    TensorFile file;
    file.add("a", Tensor::zeros({1}, Dtype::f32));
    file.add(name, Tensor::zeros({1}, Dtype::f32));
    file.metadata = {{"x", ""}, {key, ""}};
    try {
      format_safetensors(file);
      return false;
    } catch (const Error& error) {
      return error.status() == Status::invalid_argument;
    }
  };
  EXPECT_FALSE(fails("b"));
  EXPECT_TRUE(fails("a"));
  EXPECT_TRUE(fails(""));
  EXPECT_TRUE(fails("__metadata__"));
  EXPECT_TRUE(fails(std::string(257, 'n')));
  EXPECT_TRUE(fails("\xff"));
  EXPECT_TRUE(fails("b", "x"));
  EXPECT_TRUE(fails("b", "\xff"));
}

TEST(Safetensors, MissingTensorIsNamed) {
  EXPECT_EQ(example().find("nothing"), nullptr);
  try {
    example().at("nothing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::corrupt);
    EXPECT_NE(std::string(error.what()).find("'nothing'"), std::string::npos);
  }
}

class Shards : public testing::Test {
 protected:
  Shards() {
    TensorFile first;
    first.metadata = {{"format", "pt"}};
    first.add("b", Tensor::zeros({2}, Dtype::f32));
    TensorFile second;
    second.metadata = {{"format", "pt"}, {"more", "x"}};
    second.add("a", Tensor::zeros({1}, Dtype::bf16));
    write_safetensors(scratch_ / "m-1.safetensors", first);
    write_safetensors(scratch_ / "m-2.safetensors", second);
  }
  Status read(const std::string& weight_map) {
    write_file(scratch_ / "model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":10},\"weight_map\":" + weight_map + "}");
    try {
      read_safetensors_model(scratch_.path());
    } catch (const Error& error) {
      return error.status();
    }
    return Status::ok;
  }
  Scratch scratch_;
};

TEST_F(Shards, AreJoined) {
  ASSERT_EQ(read(R"({"a":"m-2.safetensors","b":"m-1.safetensors"})"), Status::ok);
  const TensorFile file = read_safetensors_model(scratch_ / "model.safetensors.index.json");
  ASSERT_EQ(file.tensors.size(), 2U);
  EXPECT_EQ(file.tensors[0].first, "b");
  EXPECT_EQ(file.tensors[1].first, "a");
  EXPECT_EQ(file.metadata.size(), 2U);
}

TEST_F(Shards, RefusesEachBadIndex) {
  for (const char* map : {
           R"({"a":"m-2.safetensors","b":"m-2.safetensors"})",                        // wrong shard
           R"({"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-1.safetensors"})",  // no such
           R"({"a":"m-1.safetensors","b":"m-1.safetensors"})",
           R"({"a":"m-2.safetensors","b":"./m-1.safetensors"})",
           R"({"a":"m-2.safetensors","b":"../m-1.safetensors"})",
           R"({"a":"m-2.safetensors","b":"/m-1.safetensors"})",
           R"({"a":"m-2.safetensors","b":"sub\\m-1.safetensors"})",
           R"({"a":"m-2.safetensors","b":".."})",
           R"({"a":"m-2.safetensors","b":""})",
           R"({"a":"m-2.safetensors","b":".safetensors"})",
           R"({"a":"m-2.safetensors","b":"m-1.bin"})",
           R"({"a":"m-2.safetensors","b":"m\u0000-1.safetensors"})",
           R"({"a":"m-2.safetensors","b":1})",
           R"({"a":"m-2.safetensors","a":"m-2.safetensors","b":"m-1.safetensors"})",
           "[]",
           "null",
       }) {
    EXPECT_EQ(read(map), Status::corrupt) << map;
  }
  EXPECT_EQ(read(R"({"a":"m-2.safetensors","b":"m-3.safetensors"})"), Status::io);
  EXPECT_THROW(parse_shard_index("[]", "here"), Error);
  EXPECT_THROW(parse_shard_index("{}", "here"), Error);
}

TEST(Safetensors, GoldenFilesKeepOrderMetadataAndData) {
  const fs::path golden = test::shared_dir() / "golden";
  if (!fs::exists(golden)) GTEST_SKIP() << golden << " is not here";
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(golden)) {
    if (entry.path().extension() != ".safetensors") continue;
    const TensorFile first = read_safetensors(entry.path());
    const TensorFile second = parse(format_safetensors(first));
    ASSERT_EQ(first.tensors.size(), second.tensors.size());
    EXPECT_EQ(first.metadata, second.metadata);
    for (std::size_t i = 0; i < first.tensors.size(); ++i) {
      const auto& [name, tensor] = first.tensors[i];
      EXPECT_EQ(name, second.tensors[i].first);
      EXPECT_EQ(tensor.shape(), second.tensors[i].second.shape());
      EXPECT_EQ(std::memcmp(tensor.raw(), second.tensors[i].second.raw(), tensor.bytes()), 0);
    }
    ++files;
  }
  EXPECT_GT(files, 90);
}

}  // namespace
}  // namespace rankone
