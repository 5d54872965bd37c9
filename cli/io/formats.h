// The three formats, behind the choice by extension.
#pragma once

#include <string>
#include <vector>

#include "io/elements.h"
#include "io/input.h"
#include "io/output_file.h"

namespace flashwok::io {

Status ReadNpy(Input& input, HostTensor* tensor);
Status ListNpy(Input& input, TensorEntry* entry);
// Magic, version and dict of the array in version 1.0.
Status NpyHeader(const Tensor& view, const std::string& what, std::string* header);

Status ReadNpz(FileInput& file, const std::string& name, HostTensor* tensor);
Status ReadNpz(MemoryInput& file, const std::string& name, HostTensor* tensor);
Status ListNpz(FileInput& file, std::vector<TensorEntry>* entries);
Status ListNpz(MemoryInput& file, std::vector<TensorEntry>* entries);
// Writes over the temporary file.
Status WriteNpz(OutputFile& file, const NamedViews& tensors);

Status ReadSafetensors(Input& input, const std::string& name, HostTensor* tensor);
Status ListSafetensors(Input& input, std::vector<TensorEntry>* entries);
Status WriteSafetensors(OutputFile& file, const NamedViews& tensors, const Metadata& metadata);

}  // namespace flashwok::io
