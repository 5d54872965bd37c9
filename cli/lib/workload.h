// The tensors of one problem, read from files or made from a seed, and the problem over them.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <string>

#include "flashwok/attention.h"
#include "io/tensor_file.h"
#include "lib/options.h"
#include "lib/text.h"

namespace flashwok::cli {

class Workload {
 public:
  enum class Data { kMake, kNone };
  // Reads or makes every tensor; `pass` says whether dout is needed. kNone: synthetic q, k and v
  // have shapes alone, for Plan. Throws BadInput.
  Workload(const WorkloadOptions& options, Pass pass, Algorithm algorithm = Algorithm::kAuto,
           Data data = Data::kMake);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  Problem problem;
  Tensor dout;  // absent unless the backward pass asked for it

  bool synthetic() const { return synthetic_; }
  bool bhsd() const { return bhsd_; }
  // Throws what `status` says; names the file when the argument came from one.
  void Check(const Status& status) const;

 private:
  void Sources(const WorkloadOptions& options, Pass pass);
  void TakeNamed(const std::string& input, Pass pass);
  void ReadAll(const WorkloadOptions& options);
  Tensor Read(const std::string& argument, const WorkloadOptions& options);
  Tensor Numbers(const std::string& argument, const std::string& text);
  Tensor AutoSlopes();
  void MakeAll(const WorkloadOptions& options, Pass pass);
  Tensor Random(std::array<std::int64_t, 4> shape, DType dtype, std::uint64_t seed);
  Tensor Store(io::HostTensor tensor);
  Tensor& Slot(const std::string& argument);
  void SetOptions(const WorkloadOptions& options);

  std::deque<io::HostTensor> storage_;
  std::map<std::string, std::string> sources_;  // argument -> FILE[:NAME] or numbers
  bool synthetic_ = false;
  bool bhsd_ = false;
  bool with_data_ = true;
};

// Swaps seqlen and num_heads of a rank-4 view: bhsd <-> bshd without a copy.
Tensor SwapHeads(const Tensor& tensor);

// "batch 2, seqlen 256 x 256, heads 12 over 12, head_dim 32, float32, causal none"; a CUDA device
// is named at the end.
std::string Describe(const Problem& problem, Device device = {});
Json ToJson(const Problem& problem);

// Pairs of a query and a key that the intervals (causal, window, lengths) let meet, over all heads.
double VisiblePairs(const Problem& problem);
// Useful FLOPs: 2 a multiply-add, over the visible pairs alone; two products forward, five
// backward.
double UsefulFlops(const Problem& problem, Pass pass);

}  // namespace flashwok::cli
