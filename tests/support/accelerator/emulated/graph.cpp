// torch.accelerator.Graph: the operations on a stream, recorded, and queued anew by each replay.
#include <ATen/core/GraphImplInterface.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>

#include "device.h"

namespace emu {
namespace {

std::map<int, Capture*> captures;  // by stream

struct Graph final : at::GraphImplInterface {
  explicit Graph(const at::GraphImplArgs&) {}
  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    std::lock_guard guard(lock());
    stream_ = current_stream(current_device());
    TORCH_CHECK(stream_ >= 16, "emu graphs must be captured on a stream that is not the default one");
    TORCH_CHECK(!capture_on(stream_), "the stream is being captured already");
    captures[stream_] = &capture_;
  }
  void capture_end() override {
    std::lock_guard guard(lock());
    for (const auto& [stream, capture] : captures)  // torch waits for the device before a capture, which then runs nothing
      if (capture == &capture_) host_waits(stream);
    std::erase_if(captures, [&](const auto& each) { return each.second == &capture_; });
    for (const auto& [data, bytes] : capture_.before) {
      Allocation* a = find_allocation(data);
      if (!a || a->data != data || a->bytes != bytes.size()) continue;
      open(a);
      memcpy(data, bytes.data(), bytes.size());
      close(a);
    }
    capture_.before.clear();
  }
  void instantiate() override {}
  void replay() override {
    at::AutoDispatchBelowADInplaceOrView guard;
    for (const auto& step : capture_.steps) step();
  }
  void reset() override { capture_.steps.clear(); }
  at::MempoolId_t pool() const override { return {0, 1}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override { TORCH_CHECK(false, "emu graphs have no dump"); }

 private:
  int stream_ = 0;
  Capture capture_;
};
}  // namespace

Capture* capture_on(int stream) {
  std::lock_guard guard(lock());
  auto found = captures.find(stream);
  return found == captures.end() ? nullptr : found->second;
}

void join_capture(int stream, Capture* capture) {
  bool is_running = std::any_of(captures.begin(), captures.end(), [&](const auto& each) { return each.second == capture; });
  if (!is_running || captures.count(stream)) return;
  TORCH_CHECK(stream >= 16, "operation would make ", name_of(stream), " depend on a stream that is being captured");
  captures[stream] = capture;
}

}  // namespace emu

namespace at {
C10_REGISTER_CLASS(GraphImplRegistry, EMU, emu::Graph);
}  // namespace at
