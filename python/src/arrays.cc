#include "python/src/arrays.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "python/src/array.h"

namespace flashwok::python {
namespace {

// How arrays of a type are read; by neither: through flashwok._arrays.
struct Route {
  PyTypeObject* type = nullptr;
  const dlpack::Exchange* table = nullptr;
  bool buffer = false;
};

const dlpack::Exchange* TableOf(PyTypeObject* type) {
  const nb::object capsule = nb::steal(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) PyErr_Clear();
  constexpr const char* kName = "dlpack_exchange_api";
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
  const auto* header =
      static_cast<const dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  while (header != nullptr && header->major != dlpack::kMajor) header = header->previous;
  const auto* table = reinterpret_cast<const dlpack::Exchange*>(header);
  return table != nullptr && table->tensor_from_object != nullptr ? table : nullptr;
}

Route Find(PyTypeObject* type) {
  Route route{type, TableOf(type), false};
  PyObject* numpy = PyDict_GetItemString(PySys_GetObject("modules"), "numpy");  // borrowed
  if (route.table == nullptr && numpy != nullptr) {
    // A class derived from it may mean something else by its buffer.
    const nb::object ndarray = nb::getattr(nb::handle(numpy), "ndarray", nb::none());
    route.buffer = ndarray.ptr() == reinterpret_cast<PyObject*>(type);
  }
  return route;
}

// Of the last few types, which are kept alive; guarded by the lock of Python.
const Route& RouteOf(nb::handle array) {
  static std::array<Route, 4> known;
  static std::size_t next = 0;
  PyTypeObject* type = Py_TYPE(array.ptr());
  for (const Route& route : known) {
    if (route.type == type) return route;
  }
  const Route found = Find(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  Route& place = known[next++ % known.size()];
  Py_XDECREF(reinterpret_cast<PyObject*>(place.type));
  place = found;
  return place;
}

bool OnCuda(dlpack::Device device) {
  return device.type == dlpack::kCuda || device.type == dlpack::kCudaManaged;
}

dlpack::Type FromFormat(const char* format) {
  if (format == nullptr || format[0] == '\0' || format[1] != '\0') return {};
  switch (format[0]) {
    case 'f': return {dlpack::kFloat, 32, 1};
    case 'e': return {dlpack::kFloat, 16, 1};
    case '?': return {dlpack::kBool, 8, 1};
    case 'i': return {dlpack::kInt, 8 * sizeof(int), 1};
    default: return {};
  }
}

// False where there is no buffer, or one that says what a Tensor has no words for.
bool ReadByBuffer(nb::handle array, const char* name, bool result, Tensor* to) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  struct Release {
    Py_buffer* buffer;
    ~Release() { PyBuffer_Release(buffer); }
  } release{&buffer};
  const dlpack::Type dtype = FromFormat(buffer.format);
  if (dtype.lanes == 0 || buffer.ndim < 1 || buffer.ndim > Tensor::kMaxRank) return false;
  if (result && buffer.readonly != 0) return false;
  std::int64_t shape[Tensor::kMaxRank], strides[Tensor::kMaxRank];
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    if (buffer.strides[axis] % buffer.itemsize != 0) return false;
    shape[axis] = buffer.shape[axis];
    strides[axis] = buffer.strides[axis] / buffer.itemsize;
  }
  *to = MakeTensor({buffer.buf, {dlpack::kCpu, 0}, buffer.ndim, dtype, shape, strides, 0}, name);
  return true;
}

nb::object ArraysModule() { return nb::module_::import_("flashwok._arrays"); }

}  // namespace

Arrays::Arrays(nb::handle q, nb::object stream) : stream_(std::move(stream)) {
  const Route route = RouteOf(q);
  table_ = route.table;
  if (stream_.is_none() && table_ == nullptr && !route.buffer) {
    stream_ = ArraysModule().attr("current_stream")(q);
  }
  q_ = Read(q, "q");
}

Tensor Arrays::Read(nb::handle array, const char* name, bool result) {
  if (array.is_none()) return {};
  const Route route = RouteOf(array);
  Tensor tensor;
  if (route.table != nullptr && ReadByTable(array, name, *route.table, &tensor)) return tensor;
  if (route.buffer && ReadByBuffer(array, name, result, &tensor)) return tensor;
  return View(array, name, result);
}

bool Arrays::ReadByTable(nb::handle array, const char* name, const dlpack::Exchange& table,
                         Tensor* to) {
  dlpack::Tensor from{};
  if (table.tensor_from_object(array.ptr(), &from) != 0) {
    PyErr_Clear();
    return false;
  }
  if (OnCuda(from.device)) {
    // The table orders nothing on a stream: it is for arrays of the library whose stream is used.
    if (&table != table_) return false;
    if (stream_.is_none()) {
      void* now = nullptr;
      if (table.current_stream(from.device.type, from.device.index, &now) != 0) {
        throw nb::python_error();
      }
      const auto number = reinterpret_cast<std::uintptr_t>(now);
      stream_ = nb::int_(number == 0 ? 1 : number);
    }
  } else if (from.device.type != dlpack::kCpu && from.device.type != dlpack::kCudaHost) {
    return false;
  }
  *to = MakeTensor(from, name);
  return true;
}

Tensor Arrays::View(nb::handle array, const char* name, bool result) {
  views_.push_back(ArraysModule().attr("view")(array, name, stream_));
  const Array& view = nb::cast<const Array&>(views_.back());
  return result ? view.writable() : view.tensor();
}

void* Arrays::stream() const {
  // DLPack's 1 and 2, the default streams, are handles of CUDA's too.
  if (stream_.is_none()) return nullptr;
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream_));
}

}  // namespace flashwok::python
