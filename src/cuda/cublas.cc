#include "cuda/cublas.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <map>

namespace flashwok::cuda {
namespace {

// Of cublas_api.h and library_types.h, whose numbers are part of the binary interface.
using Handle = void*;
enum Operation : int { kPlainOperand = 0, kTransposed = 1 };
enum DataType : int { kReal32F = 0, kReal16F = 2, kReal16BF = 14 };
constexpr int kCompute32F = 68;
constexpr int kDefaultAlgorithm = -1;

struct Functions {
  int (*create)(Handle*) = nullptr;
  int (*set_stream)(Handle, cudaStream_t) = nullptr;
  int (*set_workspace)(Handle, void*, std::size_t) = nullptr;
  int (*gemm)(Handle, int, int, std::int64_t, std::int64_t, std::int64_t, const void*, const void*,
              int, std::int64_t, long long, const void*, int, std::int64_t, long long, const void*,
              void*, int, std::int64_t, long long, std::int64_t, int, int) = nullptr;
  bool complete() const {
    return create != nullptr && set_stream != nullptr && set_workspace != nullptr &&
           gemm != nullptr;
  }
};

Functions Load() {
  Functions functions;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          dlsym(library, symbol));
    };
    find(functions.create, "cublasCreate_v2");
    find(functions.set_stream, "cublasSetStream_v2");
    find(functions.set_workspace, "cublasSetWorkspace_v2");
    find(functions.gemm, "cublasGemmStridedBatchedEx_64");
    if (functions.complete()) break;
  }
  return functions;
}

const Functions& Cublas() {
  static const Functions functions = Load();
  return functions;
}

DataType TypeOf(DType dtype) {
  return dtype == DType::kFloat32 ? kReal32F : dtype == DType::kFloat16 ? kReal16F : kReal16BF;
}

Status Check(int code, const char* what) {
  if (code == 0) return {};
  return {StatusCode::kInternal, std::string(what) + ": error " + std::to_string(code)};
}

// A handle is of one device and for one thread at a time.
Status HandleOfThread(Handle* handle) {
  thread_local std::map<int, Handle> handles;
  int device = 0;
  (void)cudaGetDevice(&device);
  Handle& slot = handles[device];
  Status status;
  if (slot == nullptr) status = Check(Cublas().create(&slot), "cublasCreate");
  *handle = slot;
  return status;
}

}  // namespace

std::string CublasAbsence() {
  return Cublas().complete() ? std::string() : "libcublas.so.13 or .12 was not found";
}

Status Multiply(const Product& p, void* workspace, void* stream) {
  Handle handle = nullptr;
  Status status = HandleOfThread(&handle);
  if (status.ok()) {
    status = Check(Cublas().set_stream(handle, static_cast<cudaStream_t>(stream)),
                   "cublasSetStream");
  }
  if (status.ok()) {
    status = Check(Cublas().set_workspace(handle, workspace, kCublasWorkspace),
                   "cublasSetWorkspace");
  }
  if (!status.ok()) return status;
  const float one = 1.0f;
  const float zero = 0.0f;
  // cuBLAS counts columns first: there, C^T = op(B)^T A^T.
  const int code = Cublas().gemm(
      handle, p.transpose_b ? kTransposed : kPlainOperand, kPlainOperand, p.n, p.m, p.k, &one, p.b,
      TypeOf(p.dtype), p.b_row, p.b_batch, p.a, TypeOf(p.dtype), p.a_row, p.a_batch, &zero, p.c,
      TypeOf(p.c_dtype), p.c_row, p.c_batch, p.count, kCompute32F, kDefaultAlgorithm);
  return Check(code, "cublasGemmStridedBatchedEx");
}

}  // namespace flashwok::cuda
