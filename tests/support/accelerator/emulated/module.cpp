// What Python sees of it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "device.h"

namespace emu {
void register_hooks();
void register_like_cpu(torch::Library& own, torch::Library& casts);
}  // namespace emu

PYBIND11_MODULE(native, m) {
  using namespace emu;
  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static torch::Library casts(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  m.def("init", [] {
    register_hooks();
    register_like_cpu(own, casts);
  });
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_device);
  m.def("is_used", &is_used);
  m.def("use_device", &use_device);
  m.def("is_bad_fork", &is_bad_fork);
  m.def("kernels", &kernels);
  m.def("memory", &memory);
  m.def("reset_peak", &reset_peak);
  m.def("default_generator", [](int device) { return default_generator(device); });
  m.def("findings", &findings, pybind11::arg("clear") = false);
  // A collective's part: queued on the current stream of its device, without the host waiting for it.
  m.def("queue", [](const std::string& name, const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes) {
    std::vector<Access> accesses;
    int device = (reads.empty() ? writes : reads).at(0).device().index();
    for (const auto& t : reads) accesses.push_back({allocation_of(t), false, text_of(t)});
    for (const auto& t : writes) accesses.push_back({allocation_of(t), true, text_of(t)});
    queue(current_stream(device), name, accesses);
  });
  m.def("bytes_of", [](const at::Tensor& t) {  // a copy on the host
    Allocation* a = allocation_of(t);
    open(a);
    c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), c10::DataPtr(t.storage().mutable_data(), c10::kCPU), nullptr, false);
    auto host = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    host.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    auto made = host.clone();
    close(a);
    return made;
  });
}
