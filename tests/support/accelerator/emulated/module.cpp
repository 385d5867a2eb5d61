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
  // A collective's part: queued, without the host waiting for it.
  m.def("queue", [](const std::string& name, const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes, int64_t stream) {
    std::vector<Access> accesses;
    int device = (reads.empty() ? writes : reads).at(0).device().index();
    for (const auto& t : reads) accesses.push_back(access(t, false));
    for (const auto& t : writes) accesses.push_back(access(t, true));
    queue(stream_of(device, stream), name, accesses);
  });
  m.def("bytes_of", [](const at::Tensor& t) {  // a copy on the host
    open(allocation_of(t));
    auto made = host_view(t).clone();
    close(allocation_of(t));
    return made;
  });
  m.def("write", [](const std::string& name, const at::Tensor& t, const at::Tensor& host) {
    Kernel kernel(name, current_stream(t.device().index()), {access(t, true)});
    host_view(t).copy_(host);
  });
  m.def("before_synchronizing", [](pybind11::function call) {
    static pybind11::function kept;
    kept = std::move(call);
    before_synchronizing() = [] {
      pybind11::gil_scoped_acquire gil;
      kept();
    };
  });
}
