// The devices as torch sees them.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "order.h"

namespace emu {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;

c10::Allocator* device_allocator();
int current_device();
void set_device(int device);
int current_stream(int device);
at::Generator host_generator(int device);  // that a kernel draws from for the device's default one
at::Generator host_generator(const at::Generator& generator);
const at::Generator& default_generator(int device);
void grow(c10::StorageImpl* storage, size_t bytes);
int64_t kernels();
at::Tensor host_view(const at::Tensor& t);  // of its bytes: neither memory nor a Python object is held

inline Allocation* allocation_of(const at::Tensor& t) {
  return t.has_storage() ? (Allocation*)t.storage().data_ptr().get_context() : nullptr;
}

inline std::string text_of(const at::Tensor& t) {
  std::string text = std::string(c10::toString(t.scalar_type())) + "[";
  for (int64_t i = 0; i < t.dim(); i++) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + "]";
}

inline Access access(const at::Tensor& t, bool writes) {
  Access made{allocation_of(t), writes, text_of(t)};
  made.begin = t.storage_offset() * t.itemsize();
  made.end = made.begin + t.itemsize();
  for (int64_t i = 0; i < t.dim(); i++) made.end += t.size(i) ? (t.size(i) - 1) * t.stride(i) * t.itemsize() : 0;
  if (!t.numel()) made.allocation = nullptr;
  return made;
}

// What a graph captures: the operations on a stream. They run once, and what they changed is put back at the end.
struct Capture {
  std::vector<std::function<void()>> steps;
  std::map<char*, std::string> before;  // bytes of memory that an operation has written
};

// Queues an operation and keeps what it touches open.
class Kernel {
 public:
  Kernel(const std::string& name, int stream, const std::vector<Access>& accesses);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  void writes_new(const at::Tensor& t);  // made by this kernel
  const int stream;
  uint64_t tick;

 private:
  std::string name_;
  std::vector<Allocation*> open_;
};

}  // namespace emu
