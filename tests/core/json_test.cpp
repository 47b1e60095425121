#include "core/json.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/status.hpp"

namespace rankone {
namespace {

std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "config.json", limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::corrupt);
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 500U);
    return message;
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 100);
  return {};
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Json, ParsesEveryKindOfValue) {
  const Json value = parse_json(
      R"({"a": [1, -2, 2.5, true, null, "x\u00e9\n"], "b": {"c": {}}, "big": 18446744073709551615})",
      "here");
  EXPECT_EQ(value["a"].size(), 6U);
  EXPECT_EQ(value["a"][1].get<int>(), -2);
  EXPECT_EQ(value["a"][5].get<std::string>(), "x\xc3\xa9\n");
  EXPECT_TRUE(value["b"]["c"].is_object());
  EXPECT_EQ(value["big"].get<std::uint64_t>(), ~std::uint64_t{0});
  EXPECT_EQ(parse_json(" 7 ", "here").get<int>(), 7);
}

TEST(Json, NestedContainersKeepTheirOrderAndPlace) {
  const std::string text = R"([[1,[2,3],{"k":[4,{"l":[]}]}],[],{"m":{"n":5},"o":[6]}])";
  EXPECT_EQ(parse_json(text, "here").dump(), text);
}

TEST(Json, ReadsTheLiteralsOfPython) {
  const Json value = parse_json(
      R"({"dt_limit": [0.0, Infinity], "low": -Infinity, "nan":NaN, "text": "Infinity, NaN \" NaN"})",
      "here");
  EXPECT_EQ(value["dt_limit"][1], (Json{{"__float__", "Infinity"}}));
  EXPECT_EQ(value["low"]["__float__"], "-Infinity");
  EXPECT_EQ(value["nan"]["__float__"], "NaN");
  EXPECT_EQ(value["text"], "Infinity, NaN \" NaN");
  EXPECT_EQ(parse_json("Infinity", "here")["__float__"], "Infinity");
  for (const char* bad : {"Infinity1", "+Infinity", "--Infinity", "InfinityNaN", "nan", "inf",
                          "-NaN", "{Infinity: 1}", "1Infinity", "{\"a\" NaN}"}) {
    refusal(bad);
  }
}

TEST(Json, RefusalsNameThePlaceInTheOriginal) {
  EXPECT_TRUE(contains(refusal("{\"a\": 1,\n \"b\": x}"), "config.json:2:7:"));
  EXPECT_TRUE(contains(refusal("[Infinity, NaN,\nInfinity, ?]"), "config.json:2:11:"));
  EXPECT_TRUE(contains(refusal(""), "config.json:1:1:"));
  EXPECT_TRUE(contains(refusal("{\"a\": 1"), "config.json:1:8:"));
  EXPECT_TRUE(contains(refusal("[1, 2] 3"), "config.json:1:8:"));
}

TEST(Json, RefusesEachHostileInput) {
  EXPECT_TRUE(contains(refusal(R"({"a": 1, "b": {"a": 2, "a": 3}})"), "'a' stands twice"));
  refusal(R"({"a": 1, "\u0061": 2})");  // the same key, written differently
  EXPECT_TRUE(contains(refusal(std::string("{} \0 garbage", 12)), "NUL"));
  refusal(std::string("\"a\0b\"", 5));
  refusal("\"\xff\"");
  refusal("\"\xed\xa0\x80\"");
  refusal("\"\\ud800\"");
  refusal("\"\n\"");
  refusal("1e999");
  refusal("[1,]");
  refusal("{\"a\":1,}");
  refusal("// comment\n1");
  refusal("01");
  refusal("\"abc\\");
  refusal(std::string(100'000, 'x'));
  EXPECT_TRUE(contains(refusal(std::string(1'000'000, '[')), "deeper than 64"));
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  EXPECT_TRUE(contains(refusal(objects), "deeper than 64"));
}

TEST(Json, LimitsAreExact) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(64), "here"));
  refusal(nested(65));
  EXPECT_NO_THROW(parse_json("[1,2]", "here", {5, 1}));
  refusal("[1,2]", {4, 1});
  refusal("[[]]", {100, 1});
}

}  // namespace
}  // namespace rankone
