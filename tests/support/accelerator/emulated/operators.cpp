// Every operator: order checked, memory opened, and computed by the CPU's kernel on the same bytes.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <limits>

#include "device.h"

namespace emu {
namespace {

using torch::jit::Stack;
std::atomic<int64_t> count{0};

bool is_here(const at::Tensor& t) { return t.defined() && t.device().type() == TYPE; }

// Host tensors over the bytes of the device's: one storage for each storage, one tensor for each tensor.
class Aliases {
 public:
  at::Tensor of(const at::Tensor& t) {
    if (!is_here(t)) return t;
    auto& known = tensors_[t.unsafeGetTensorImpl()];
    if (known.defined()) return known;
    auto* storage = t.storage().unsafeGetStorageImpl();
    auto& alias = storages_[storage];
    if (!alias)
      alias = c10::Storage(c10::Storage::use_byte_size_t(), storage->nbytes(), c10::DataPtr(storage->mutable_data(), c10::kCPU),
                           c10::GetAllocator(c10::kCPU), /*resizable=*/true);
    known = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(alias), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    auto* impl = known.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    originals_[impl] = t;
    return known;
  }
  // The device's tensor for a result on the host: the argument itself, a view of it, or new memory.
  at::Tensor back(const at::Tensor& result, int device, Kernel& kernel) {
    if (!result.defined() || is_here(result)) return result;
    auto same = originals_.find(result.unsafeGetTensorImpl());
    if (same != originals_.end()) return same->second;
    for (auto& [storage, alias] : storages_)
      if (result.storage().unsafeGetStorageImpl() == alias.unsafeGetStorageImpl()) {
        auto own = c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
        auto view = at::detail::make_tensor<c10::TensorImpl>(std::move(own), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
        return view;
      }
    bool is_dense = result.is_non_overlapping_and_dense();
    c10::OptionalDeviceGuard guard(c10::Device(TYPE, device));
    at::Tensor made = at::empty_strided(result.sizes(), is_dense ? result.strides() : result.contiguous().strides(),
                                        result.options().device(c10::Device(TYPE, device)));
    kernel.writes_new(made);
    of(made).copy_(result);
    if (result.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }
  // An out= argument that its kernel has given another shape.
  void resized(Kernel& kernel) {
    for (auto& [impl, t] : std::map<c10::TensorImpl*, at::Tensor>(originals_)) {
      at::Tensor host = tensors_[t.unsafeGetTensorImpl()];
      if (host.sizes() == t.sizes() && host.strides() == t.strides() && host.storage_offset() == t.storage_offset()) continue;
      auto* storage = t.storage().unsafeGetStorageImpl();
      bool is_new = host.storage().data() != storage->data();
      if (is_new) grow(storage, host.storage().nbytes());
      t.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      if (!is_new) continue;
      kernel.writes_new(t);
      Aliases().of(t).copy_(host);
    }
  }

 private:
  std::map<c10::TensorImpl*, at::Tensor> tensors_, originals_;
  std::map<c10::StorageImpl*, c10::Storage> storages_;
};

const std::set<std::string> WAITS = {  // the host learns of values, so it waits for the stream
    "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::repeat_interleave", "aten::bincount",
    "aten::_local_scalar_dense"};
const std::set<std::string> HOST_INDICES = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put"};

void check_may_wait(int stream, const std::string& name) {
  TORCH_CHECK(!capture_on(stream), "operation not permitted when stream is capturing: the host waits in ", name);
}

void put(const c10::IValue& to, const c10::IValue& from);

// a graph keeps addresses: a tensor of which the program sets other data later keeps its memory here
at::Tensor pinned_down(const at::Tensor& t) {
  return t.defined() && is_here(t) ? at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(0, false)) : t;
}

c10::IValue pinned_down(const c10::IValue& value) {
  if (value.isTensor()) return pinned_down(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> all;
    for (const auto& t : value.toTensorVector()) all.push_back(pinned_down(t));
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const auto& t : value.toOptionalTensorVector()) all.push_back(t ? std::optional(pinned_down(*t)) : t);
    return all;
  }
  return value;
}

void run(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const size_t n = schema.arguments().size(), first = stack->size() - n;
  int device = -1;
  std::vector<Access> accesses;
  bool is_masked = false;
  auto touch = [&](const at::Tensor& t, bool writes) {
    if (!t.defined()) return;
    if (!is_here(t)) {
      TORCH_CHECK(t.dim() == 0 || HOST_INDICES.count(name), "Expected all tensors to be on the same device: ", name, " has ", text_of(t), " on ", t.device());
      return;
    }
    TORCH_CHECK(device < 0 || device == t.device().index(), "Expected all tensors to be on the same device, but found at least two: ", name,
                " has tensors on emu:", device, " and ", t.device());
    device = t.device().index();
    is_masked = is_masked || t.scalar_type() == at::kBool;
    accesses.push_back(access(t, writes));
  };
  for (size_t i = 0; i < n; i++) {
    const auto& value = (*stack)[first + i];
    const auto* alias = schema.arguments()[i].alias_info();
    bool writes = alias && alias->isWrite();
    if (value.isTensor()) {
      touch(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      for (const auto& t : value.toTensorVector()) touch(t, writes);
    } else if (value.isOptionalTensorList()) {
      for (const auto& t : value.toOptionalTensorVector())
        if (t) touch(*t, writes);
    } else if (value.isDevice() && device < 0 && value.toDevice().type() == TYPE) {
      device = value.toDevice().has_index() ? value.toDevice().index() : current_device();
    }
  }
  if (device < 0) device = current_device();
  bool waits = WAITS.count(name) || (is_masked && HOST_INDICES.count(name));
  if (waits) check_may_wait(current_stream(device), name);
  Kernel kernel(name, current_stream(device), accesses);
  Capture* capture = capture_on(kernel.stream);
  Stack arguments;
  if (capture)
    for (size_t i = 0; i < n; i++) arguments.push_back(pinned_down((*stack)[first + i]));
  Aliases aliases;
  for (size_t i = 0; i < n; i++) {
    auto& value = (*stack)[first + i];
    if (value.isTensor()) {
      value = aliases.of(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> hosts;
      for (const auto& t : value.toTensorVector()) hosts.push_back(aliases.of(t));
      value = std::move(hosts);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> hosts;
      for (const auto& t : value.toOptionalTensorVector()) hosts.push_back(t ? std::optional(aliases.of(*t)) : t);
      value = std::move(hosts);
    } else if (value.isGenerator()) {
      value = host_generator(value.toGenerator());
    } else if (value.isNone() && schema.arguments()[i].name() == "generator") {
      value = host_generator(device);
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    }
    if (capture && value.isGenerator()) arguments[i] = value;  // whatever state the device's has at a replay
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  aliases.resized(kernel);
  const size_t returned = schema.returns().size();
  for (size_t i = stack->size() - returned; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = aliases.back(value.toTensor(), device, kernel);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const auto& t : value.toTensorVector()) all.push_back(aliases.back(t, device, kernel));
      value = std::move(all);
    }
  }
  if (waits) host_waits(kernel.stream);
  if (!capture) return;
  Stack results;
  for (size_t i = stack->size() - returned; i < stack->size(); i++) results.push_back(pinned_down((*stack)[i]));
  capture->steps.push_back([op, arguments, results] {
    Stack again = arguments;
    run(op, &again);
    for (size_t i = 0; i < results.size(); i++) put(results[i], again[i]);
  });
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> t, std::optional<c10::Layout>, std::optional<c10::Device> d,
                 std::optional<bool>, std::optional<c10::MemoryFormat> f) {
  c10::OptionalDeviceGuard guard(d);
  return at::detail::empty_generic(size, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(t), f);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> t, std::optional<c10::Layout>,
                         std::optional<c10::Device> d, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(d);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(t));
}

at::Tensor as_strided(const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}

const at::Tensor& resize(const at::Tensor& t, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  auto* impl = t.unsafeGetTensorImpl();
  if (t.sizes() != size) impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  size_t need = t.numel() ? (t.storage_offset() + t.numel()) * t.itemsize() : 0;
  if (need > t.storage().nbytes()) grow(t.storage().unsafeGetStorageImpl(), need);
  return t;
}

at::Tensor& set_from(at::Tensor& t, at::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() == nullptr && !size.empty()) {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return t;
}

at::Tensor& set_storage(at::Tensor& t, at::Storage storage) {
  int64_t numel = storage.nbytes() / t.itemsize();
  return set_from(t, std::move(storage), 0, {numel}, {1});
}

at::Tensor& set_tensor(at::Tensor& t, const at::Tensor& other) {
  return set_from(t, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

at::Tensor& set_empty(at::Tensor& t) {
  return set_from(t, at::empty({0}, t.options()).storage(), 0, {0}, {1});
}

void record_stream(at::Tensor& t, c10::Stream s) {
  std::lock_guard guard(lock());
  if (auto* a = allocation_of(t)) a->recorded.insert(stream_of(s.device_index(), s.id()));
}

uint64_t sum_of(const at::Tensor& t) {
  const auto* bytes = (const unsigned char*)t.const_data_ptr();
  uint64_t sum = 1469598103934665603ull, word = 0;
  size_t n = t.nbytes();
  for (size_t i = 0; i + 8 <= n; i += 8) {
    memcpy(&word, bytes + i, 8);
    sum = (sum ^ word) * 1099511628211ull;
    sum ^= sum >> 29;
  }
  for (size_t i = n / 8 * 8; i < n; i++) sum = (sum ^ bytes[i]) * 1099511628211ull;
  return sum;
}

Allocation* pinned_of(const at::Tensor& t) {
  Allocation* a = t.has_storage() && t.numel() ? find_allocation(t.const_data_ptr()) : nullptr;
  return a && a->device == PINNED ? a : nullptr;
}

Access pinned_access(const at::Tensor& t, Allocation* pinned, bool writes) {
  Access made = access(t, writes);
  size_t offset = (const char*)t.storage().data() - pinned->data;  // of a storage over a part of it
  return {pinned, writes, "pinned " + made.tensor, made.begin + offset, made.end + offset};
}

void fill_wrong(const at::Tensor& t) {
  if (t.is_floating_point() || t.is_complex()) {
    t.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    t.fill_(t.scalar_type() == at::kBool ? 1 : 77);
  }
}

void copy_to_device(const at::Tensor& host, const at::Tensor& to, bool is_late) {
  Allocation* pinned = pinned_of(host);
  if (pinned) finish_transfers_of(pinned, false);
  bool is_direct = pinned && host.scalar_type() == to.scalar_type() && host.is_contiguous() && to.is_contiguous() && host.sizes() == to.sizes();
  static const bool are_unpinned_wrong = getenv("EMU_UNPINNED") != nullptr;
  if (is_late && !pinned && host.dim() > 0 && are_unpinned_wrong)
    raise("not pinned: a non-blocking copy of " + text_of(host) + " to emu:" + std::to_string(to.device().index()) + " is from pageable memory");
  std::vector<Access> accesses{access(to, true)};
  if (pinned) accesses.push_back(pinned_access(host, pinned, false));
  if (!is_late || !pinned) check_may_wait(current_stream(to.device().index()), "copy to the device");
  Kernel kernel("copy to the device", current_stream(to.device().index()), accesses);
  Aliases().of(to).copy_(host);
  if (!is_late) return host_waits(kernel.stream);
  if (!is_direct) return;  // its bytes are in a staging buffer by now
  at::Tensor source = host_view(host);
  uint64_t sum = sum_of(source);
  std::string what = text_of(host) + " to emu:" + std::to_string(to.device().index());
  transfer({kernel.stream, kernel.tick, pinned, false, [source, sum, what] {
              return sum_of(source) == sum ? std::string() : "host buffer changed: the non-blocking copy of " + what + " was not done yet";
            }});
}

void copy_to_host(const at::Tensor& from, const at::Tensor& host, bool is_late) {
  Allocation* pinned = pinned_of(host);
  if (pinned) finish_transfers_of(pinned, true);
  std::vector<Access> accesses{access(from, false)};
  if (pinned) accesses.push_back(pinned_access(host, pinned, true));
  if (!is_late || !pinned) check_may_wait(current_stream(from.device().index()), "copy to the host");
  Kernel kernel("copy to the host", current_stream(from.device().index()), accesses);
  if (!is_late || !pinned) {  // into pageable memory it is done on return
    host.copy_(Aliases().of(from));
    return host_waits(kernel.stream);
  }
  at::Tensor arrives = at::empty(host.sizes(), host.options().pinned_memory(false));
  arrives.copy_(Aliases().of(from));
  at::Tensor to = host_view(host);
  fill_wrong(to);
  uint64_t sum = to.is_contiguous() ? sum_of(to) : 0;
  bool is_whole = to.is_contiguous() && to.const_data_ptr() == pinned->data && to.nbytes() == pinned->bytes;
  std::string what = text_of(host) + " from emu:" + std::to_string(from.device().index());
  if (is_whole) protect(pinned, true);
  transfer({kernel.stream, kernel.tick, pinned, true, [=] {
              if (is_whole) protect(pinned, false);
              bool is_kept = !to.is_contiguous() || sum_of(to) == sum;
              to.copy_(arrives);
              return is_kept ? std::string() : "host buffer changed: the non-blocking copy of " + what + " was not done yet";
            }});
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool is_late) {
  if (!from.numel() && !to.numel()) return to;
  if (!is_here(from)) {
    copy_to_device(from, to, is_late);
  } else if (!is_here(to)) {
    copy_to_host(from, to, is_late);
  } else {
    int stream = current_stream(from.device().index()), other = current_stream(to.device().index());
    wait_stream(stream, other);
    {
      Kernel kernel("copy", stream, {access(from, false), access(to, true)});
      Aliases aliases;
      aliases.of(to).copy_(aliases.of(from));
    }
    wait_stream(other, stream);
  }
  int stream = current_stream((is_here(from) ? from : to).device().index());
  if (Capture* capture = capture_on(stream)) capture->steps.push_back([=] { copy_from(from, to, is_late); });
  return to;
}

void put(const c10::IValue& to, const c10::IValue& from) {
  if (to.isTensorList()) {
    auto all = to.toTensorVector(), new_ones = from.toTensorVector();
    for (size_t i = 0; i < all.size(); i++) put(all[i], new_ones[i]);
  } else if (to.isTensor() && to.toTensor().defined() && allocation_of(to.toTensor()) != allocation_of(from.toTensor())) {
    copy_from(from.toTensor(), to.toTensor(), true);
  }
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& t) {
  check_may_wait(current_stream(t.device().index()), "item");
  Kernel kernel("item", current_stream(t.device().index()), {access(t, false)});
  host_waits(kernel.stream);
  return Aliases().of(t).item();
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b, c10::IntArrayRef stride, c10::IntArrayRef padding,
                       c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef more, int64_t groups) {
  int device = x.device().index();
  bool has_bias = b && b->defined();
  std::vector<Access> accesses{access(x, false), access(w, false)};
  if (has_bias) accesses.push_back(access(*b, false));
  Kernel kernel("aten::convolution", current_stream(device), accesses);
  Aliases aliases;
  auto bias = has_bias ? std::optional(aliases.of(*b)) : std::nullopt;
  auto made = aliases.back(at::convolution(aliases.of(x), aliases.of(w), bias, stride, padding, dilation, transposed, more, groups), device, kernel);
  if (Capture* capture = capture_on(kernel.stream))
    capture->steps.push_back([=, s = stride.vec(), p = padding.vec(), d = dilation.vec(), m = more.vec()] {
      put(made, emu::convolution(x, w, b, s, p, d, transposed, m, groups));
    });
  return made;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& g, const at::Tensor& x, const at::Tensor& w, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef more, int64_t groups, std::array<bool, 3> mask) {
  int device = x.device().index();
  Kernel kernel("aten::convolution_backward", current_stream(device), {access(g, false), access(x, false), access(w, false)});
  Aliases aliases;
  std::vector<int64_t> bias{transposed ? w.size(1) * groups : w.size(0)};
  auto [a, b, c] = at::convolution_backward(aliases.of(g), aliases.of(x), aliases.of(w), at::OptionalIntArrayRef(bias), stride, padding, dilation, transposed, more, groups, mask);
  auto made = std::make_tuple(aliases.back(a, device, kernel), aliases.back(b, device, kernel), aliases.back(c, device, kernel));
  if (Capture* capture = capture_on(kernel.stream))
    capture->steps.push_back([=, s = stride.vec(), p = padding.vec(), d = dilation.vec(), m = more.vec()] {
      auto again = emu::convolution_backward(g, x, w, s, p, d, transposed, m, groups, mask);
      put(std::get<0>(made), std::get<0>(again));
      put(std::get<1>(made), std::get<1>(again));
      put(std::get<2>(made), std::get<2>(again));
    });
  return made;
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {x.clone(), at::empty_like(x, x.options().dtype(at::kBool)).fill_(true)};
  auto noise = at::empty_like(x).bernoulli_(1 - p);  // as at::dropout draws on the host
  auto mask = noise.to(at::kBool);
  if (p == 1) return {x.mul(noise.zero_()), mask.zero_()};
  return {x.mul(noise.div_(1 - p)), mask};
}

at::Tensor native_dropout_backward(const at::Tensor& gradient, const at::Tensor& mask, double scale) {
  return gradient.mul(mask.to(gradient.scalar_type()).mul_(scale));
}

// As the composite chooses on the CPU.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask, double dropout, bool causal,
                     std::optional<double> scale, bool grouped) {
  bool is_plain = !(mask && mask->defined()) && !grouped;
  if (is_plain && at::_fused_sdp_choice(q, k, v, mask, dropout, causal, scale, grouped) == 1)
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale));
  return at::native::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, grouped);
}

// Casts as autocast does on the CPU, so that a run has the same bits there.
const std::set<std::string> LOWER = {
    "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::conv_tbc",
    "aten::_convolution", "aten::bmm", "aten::mm", "aten::addmm", "aten::addbmm", "aten::baddbmm", "aten::linear", "aten::matmul", "aten::linalg_vecdot",
    "aten::prelu", "aten::scaled_dot_product_attention", "aten::_native_multi_head_attention", "aten::mkldnn_rnn_layer"};
const std::set<std::string> WIDEST = {"aten::stack", "aten::cat", "aten::index_copy"};

void autocast(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1));
  const std::string& name = op.schema().name();
  const size_t n = op.schema().arguments().size(), first = stack->size() - n;
  at::ScalarType type = LOWER.count(name) || WIDEST.count(name) ? at::autocast::get_autocast_dtype(TYPE) : at::kFloat;
  auto each = [&](auto&& change) {
    for (size_t i = first; i < first + n; i++) {
      auto& value = (*stack)[i];
      if (value.isTensor()) {
        value = change(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> all;
        for (const auto& t : value.toTensorVector()) all.push_back(change(t));
        value = std::move(all);
      }
    }
  };
  if (WIDEST.count(name))
    each([&](const at::Tensor& t) {
      if (t.defined()) type = at::autocast::prioritize(type, t, TYPE);
      return t;
    });
  each([&](const at::Tensor& t) { return t.defined() ? at::autocast::cached_cast(type, t, TYPE) : t; });
  op.callBoxed(stack);
}

}  // namespace

Kernel::Kernel(const std::string& name, int stream, const std::vector<Access>& accesses) : stream(stream), name_(name) {
  use_device();
  count++;
  tick = queue(stream, name, accesses);
  Capture* capture = capture_on(stream);
  for (const auto& access : accesses) {
    Allocation* a = access.allocation;
    open(a);
    open_.push_back(a);
    if (capture && a && access.writes) capture->before.try_emplace(a->data, a->data, a->bytes);
  }
}

Kernel::~Kernel() {
  for (auto* a : open_) close(a);
}

void Kernel::writes_new(const at::Tensor& t) {
  Access made = access(t, true);
  if (!made.allocation) return;
  remember(made, stream, tick, name_);
  open(made.allocation);
  open_.push_back(made.allocation);
}

void grow(c10::StorageImpl* storage, size_t bytes) {
  c10::OptionalDeviceGuard guard(storage->device());
  auto made = device_allocator()->allocate(bytes);
  auto *from = (Allocation*)storage->data_ptr().get_context(), *to = (Allocation*)made.get_context();
  size_t kept = std::min(bytes, storage->nbytes());
  if (from && to && kept) {
    Kernel kernel("resize", current_stream(storage->device().index()), {{from, false, "a storage"}, {to, true, "a storage"}});
    memcpy(to->data, from->data, kept);
  }
  storage->set_data_ptr(std::move(made));
  storage->set_nbytes(bytes);
}

at::Tensor host_view(const at::Tensor& t) {  // not to hold memory, nor a Python object
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), c10::DataPtr(t.storage().mutable_data(), c10::kCPU), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}

int64_t kernels() { return count; }

// Kernels of its own where the CPU has one beside the composite of all devices: the same bits. Autocast where the CPU has it.
void register_like_cpu(torch::Library& own, torch::Library& casts) {
  const std::set<std::string> done = {"aten::empty", "aten::empty_strided", "aten::as_strided", "aten::view", "aten::_reshape_alias", "aten::resize_",
                                      "aten::set_", "aten::record_stream", "aten::_copy_from", "aten::_copy_from_and_resize",
                                      "aten::_local_scalar_dense", "aten::native_dropout", "aten::native_dropout_backward", "aten::copy_"};
  using c10::DispatchKey;
  for (const auto& found : c10::Dispatcher::singleton().getAllOpNames()) {
    if (found.name.rfind("aten::", 0) != 0) continue;
    auto op = c10::Dispatcher::singleton().findOp(found);
    if (!op || !op->hasSchema()) continue;
    std::string full = found.name.substr(6) + (found.overload_name.empty() ? "" : "." + found.overload_name);
    bool is_composite = op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
                        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (is_composite && op->hasKernelForDispatchKey(DispatchKey::CPU) && !done.count(found.name))
      own.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
    if (op->hasKernelForDispatchKey(DispatchKey::AutocastCPU)) casts.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&autocast>());
  }
}

}  // namespace emu

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&emu::run>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", emu::empty);
  m.impl("empty_strided", emu::empty_strided);
  m.impl("as_strided", emu::as_strided);
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(at::native::view));
  m.impl("_reshape_alias", static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef, c10::IntArrayRef)>(at::native::_reshape_alias));
  m.impl("resize_", emu::resize);
  m.impl("set_", emu::set_empty);
  m.impl("set_.source_Storage", emu::set_storage);
  m.impl("set_.source_Storage_storage_offset", emu::set_from);
  m.impl("set_.source_Tensor", emu::set_tensor);
  m.impl("record_stream", emu::record_stream);
  m.impl("_copy_from", emu::copy_from);
  m.impl("_copy_from_and_resize", emu::copy_from_and_resize);
  m.impl("_local_scalar_dense", emu::local_scalar);
  m.impl("convolution_overrideable", emu::convolution);
  m.impl("convolution_backward_overrideable", emu::convolution_backward);
  m.impl("native_dropout", emu::native_dropout);
  m.impl("native_dropout_backward", emu::native_dropout_backward);
  m.impl("scaled_dot_product_attention", emu::attention);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("scaled_dot_product_attention", emu::attention); }
