#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

namespace emu {
namespace {

thread_local int current = 0;
thread_local int64_t streams[16] = {0};

void free_memory(void* allocation) { release((Allocation*)allocation); }

void check_device(int device) {
  TORCH_CHECK(0 <= device && device < device_count(), "emu:", device, ": there are ", device_count(), " emu devices");
}

void copy_open(void* to, const void* from, size_t bytes) {
  Allocation* ends[] = {find_allocation(to), find_allocation(from)};
  for (auto* a : ends) open(a);
  memcpy(to, from, bytes);
  for (auto* a : ends) close(a);
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    check_device(current);
    Allocation* a;
    char* data = emu::allocate(bytes, current, current_stream(current), &a);
    return {data, a, &free_memory, c10::Device(TYPE, current)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { copy_open(to, from, bytes); }
  bool initialized() override { return is_used(); }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    std::lock_guard guard(lock());
    if (auto* a = (Allocation*)data.get_context()) a->recorded.insert(stream_of(stream.device_index(), stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto bytes = memory(device);
    for (auto* all : {&stats.allocated_bytes, &stats.reserved_bytes}) {
      (*all)[0].current = bytes[0];
      (*all)[0].peak = bytes[1];
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t total = size_t(16) << 30;
    return {total - memory(device)[0], total};
  }
};

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    Allocation* a;
    char* data = emu::allocate(bytes, PINNED, 0, &a);
    return {data, a, &free_memory, c10::kCPU};
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  void copy_data(void* to, const void* from, size_t bytes) const override { copy_open(to, from, bytes); }
};

Allocator allocator;
PinnedAllocator pinned_allocator;
REGISTER_ALLOCATOR(TYPE, &allocator);
REGISTER_HOST_ALLOCATOR(TYPE, &pinned_allocator);

int of(const c10::Stream& s) { return stream_of(s.device_index(), s.id()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto old = getDevice();
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return c10::Device(TYPE, current); }
  void setDevice(c10::Device d) const override { set_device(d.index()); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index(); }
  c10::Stream stream(c10::Device d, int64_t id) const { return c10::Stream(c10::Stream::UNSAFE, at(d), id); }
  c10::Device at(c10::Device d) const { return d.has_index() ? d : getDevice(); }
  c10::Stream getStream(c10::Device d) const override { return stream(d, streams[at(d).index()]); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(d, 0); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    use_device();
    check_device(at(d).index());
    return stream(d, new_stream(at(d).index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto old = getStream(s.device());
    streams[s.device_index()] = s.id();
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return (void*)(intptr_t)of(s); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void record(void** e, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    use_device();
    if (!*e) *e = new Event();
    emu::record(*(Event*)*e, of(s));
  }
  void block(void* e, const c10::Stream& s) const override {
    if (e) wait(of(s), *(Event*)e);
  }
  bool queryEvent(void* e) const override {
    synchronizeEvent(e);  // it may be done as early as this
    return true;
  }
  void destroyEvent(void* e, const c10::DeviceIndex) const noexcept override { delete (Event*)e; }
  bool isStreamCapturing(const c10::Stream& s) const override { return capture_on(of(s)); }
  bool queryStream(const c10::Stream& s) const override {
    synchronizeStream(s);
    return true;
  }
  void synchronizeStream(const c10::Stream& s) const override { host_waits(of(s)); }
  void synchronizeEvent(void* e) const override {
    if (e) host_waits(*(Event*)e);
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override { host_waits_device(d); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override {
    allocator.recordStream(data, s);
  }
  double elapsedTime(void* begun, void* ended, const c10::DeviceIndex) const override {
    TORCH_CHECK(begun && ended, "both events must be recorded");
    return (((Event*)ended)->at - ((Event*)begun)->at) * 1e3;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Draws what the host's generator draws, with a state of its own.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(int device, at::Generator host = at::detail::createCPUGenerator())
      : GeneratorImpl(c10::Device(TYPE, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "emu generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "emu generators have no offset"); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  c10::intrusive_ptr<GeneratorImpl> graphsafe_get_state() const override { return c10::make_intrusive<Generator>(device_.index(), host); }
  void graphsafe_set_state(const c10::intrusive_ptr<GeneratorImpl>& other) override { host = static_cast<Generator*>(other.get())->host; }
  GeneratorImpl* clone_impl() const override { return new Generator(device_.index(), host.clone()); }
  at::Generator host;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override { use_device(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_used(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex d) const override { set_device(d); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    auto old = current;
    set_device(d);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return d < 0 ? current : exchangeDevice(d); }
  c10::Device getDeviceFromPtr(void* data) const override {
    Allocation* a = find_allocation(data);
    TORCH_CHECK(a && a->device != PINNED, "not memory of an emu device");
    return c10::Device(TYPE, a->device);
  }
  bool isPinnedPtr(const void* data) const override {
    Allocation* a = find_allocation(data);
    return a && a->device == PINNED;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override { return at::make_generator<Generator>(i < 0 ? current : i); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override { return default_generator(i < 0 ? current : i); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    grow(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void register_hooks() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  watch_faults();
}

c10::Allocator* device_allocator() { return &allocator; }
int current_device() { return current; }
void set_device(int device) {
  check_device(device);
  current = device;
}
int current_stream(int device) { return stream_of(device, streams[device]); }

const at::Generator& default_generator(int device) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int i = 0; i < device_count(); i++) made.push_back(at::make_generator<Generator>(i));
    return made;
  }();
  return all.at(device);
}
at::Generator host_generator(int device) { return host_generator(default_generator(device)); }
at::Generator host_generator(const at::Generator& generator) {
  return generator.device().type() == TYPE ? static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->host : generator;
}

}  // namespace emu
