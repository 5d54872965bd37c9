// SHA-256 (FIPS 180-4), and the hash by which a record names the sources that it measured.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashwok::cli {

class Sha256 {
 public:
  void Update(std::string_view bytes);
  std::string HexDigest();  // ends the message

 private:
  void Block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> buffer_{};
  std::size_t buffered_ = 0;
  std::uint64_t length_ = 0;
};

// Over every file below src/ but src/cuda/, below include/, and cli/lib/bench* of the tree `root`,
// sorted by path: the path relative to root, a zero byte, the content, a zero byte. Empty when root
// is no such tree.
std::string SourcesSha256(const std::string& root);

}  // namespace flashwok::cli
