#include "lib/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace flashwok::cli {
namespace {

using Words = std::array<std::uint32_t, 64>;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes; no root is
// so close to a multiple of 2^-32 that double would round it across.
Words RoundConstants() {
  Words constants{};
  std::size_t count = 0;
  for (unsigned candidate = 2; count < constants.size(); ++candidate) {
    bool prime = true;
    for (unsigned divisor = 2; divisor * divisor <= candidate; ++divisor) {
      prime = prime && candidate % divisor != 0;
    }
    if (!prime) continue;
    const double root = std::cbrt(static_cast<double>(candidate));
    constants[count++] = static_cast<std::uint32_t>((root - std::floor(root)) * 0x1p32);
  }
  return constants;
}

Words Schedule(const unsigned char* block) {
  Words w{};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t byte = 0; byte < 4; ++byte) w[i] = w[i] << 8 | block[4 * i + byte];
  }
  for (std::size_t i = 16; i < w.size(); ++i) {
    const std::uint32_t a = w[i - 15];
    const std::uint32_t b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  return w;
}

}  // namespace

void Sha256::Block(const unsigned char* block) {
  static const Words constants = RoundConstants();
  const Words w = Schedule(block);
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> add{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < add.size(); ++i) state_[i] += add[i];
}

void Sha256::Update(std::string_view bytes) {
  length_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), buffer_.size() - buffered_);
    std::memcpy(buffer_.data() + buffered_, bytes.data(), part);
    buffered_ += part;
    bytes.remove_prefix(part);
    if (buffered_ < buffer_.size()) continue;
    Block(buffer_.data());
    buffered_ = 0;
  }
}

std::string Sha256::HexDigest() {
  const std::uint64_t bits = length_ * 8;
  Update(std::string_view("\x80", 1));
  while (buffered_ != buffer_.size() - 8) Update(std::string_view("\0", 1));
  std::string tail;
  for (int shift = 56; shift >= 0; shift -= 8) tail += static_cast<char>(bits >> shift);
  Update(tail);
  std::string digest;
  for (std::uint32_t word : state_) digest += fmt::format("{:08x}", word);
  return digest;
}

std::string SourcesSha256(const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  for (const char* folder : {"cli/lib", "include", "src"}) {
    std::error_code error;
    for (fs::recursive_directory_iterator entry(fs::path(root) / folder, error), end;
         !error && entry != end; entry.increment(error)) {
      const std::string path = entry->path().lexically_relative(root).generic_string();
      const bool measured = std::string_view(folder) == "cli/lib"
                                ? entry->path().stem().string().starts_with("bench")
                                : !path.starts_with("src/cuda/");
      if (entry->is_regular_file() && measured) paths.push_back(path);
    }
    if (error) return {};
  }
  std::sort(paths.begin(), paths.end());
  Sha256 hash;
  for (const std::string& path : paths) {
    std::ifstream file(fs::path(root) / path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    hash.Update(path);
    hash.Update(std::string_view("\0", 1));
    hash.Update(content);
    hash.Update(std::string_view("\0", 1));
  }
  return hash.HexDigest();
}

}  // namespace flashwok::cli
