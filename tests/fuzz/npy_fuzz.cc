// The reader of .npy over arbitrary bytes.
#include "fuzz/reader_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  flashwok::io::FuzzReader(data, size, "fuzz.npy");
  return 0;
}
