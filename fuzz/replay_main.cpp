// A driver for compilers without libFuzzer: runs the target over every file of the given folders,
// over prefixes of each, and over copies with one byte changed.

#include <algorithm>
#include <vector>

#include "core/files.hpp"
#include "fuzz/fuzz.hpp"

namespace {

void run(std::string_view text) {
  // A heap copy of the exact size, so that a sanitizer sees reads past its end.
  const std::vector<std::uint8_t> copy(text.begin(), text.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

void run_variants(const std::string& text) {
  constexpr std::size_t kVariants = 500;
  run(text);
  const std::size_t stride = std::max<std::size_t>(1, text.size() / kVariants);
  for (std::size_t at = 0; at < text.size(); at += stride) {
    run(std::string_view(text).substr(0, at));
    for (const unsigned mask : {0x01U, 0x80U, 0xffU}) {
      std::string changed = text;
      changed[at] = static_cast<char>(static_cast<unsigned char>(changed[at]) ^ mask);
      run(changed);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t files = 0;
  run("");
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      run_variants(rankone::read_file(entry.path(), std::size_t{16} << 20));
      ++files;
    }
  }
  std::printf("%zu seeds\n", files);
  return files == 0 ? 1 : 0;
}
