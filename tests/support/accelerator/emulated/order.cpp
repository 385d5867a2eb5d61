#include "order.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace emu {
namespace {

constexpr int DEFAULTS = 16;  // streams 0 to 15 are the devices' default ones
constexpr int MOST_STREAMS = 2048;

struct State {
  std::recursive_mutex mutex;
  std::vector<Clock> clocks = std::vector<Clock>(DEFAULTS);
  std::vector<int> devices;  // of each stream
  Clock host;  // one for all threads: what one has waited for is done, and no lock of Python's is seen here
  std::vector<Transfer> transfers;
  std::map<int, std::vector<Allocation>> freed;  // of each stream, what its next allocation may reuse
  std::vector<std::string> findings;
  State() {
    for (int i = 0; i < DEFAULTS; i++) devices.push_back(i);
  }
};

State& state() {
  static State* s = new State();  // never destroyed: streams and tensors outlive static objects
  return *s;
}

uint64_t at(const Clock& clock, int stream) { return stream < (int)clock.size() ? clock[stream] : 0; }

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); i++) clock[i] = std::max(clock[i], other[i]);
}

bool is_before(const Use& use, const Clock& clock) { return at(clock, use.stream) >= use.tick; }

std::string race(const Access& now, const std::string& name, int stream, const Use& then, const char* did) {
  return "race on " + now.tensor + ": " + name + " on " + name_of(stream) + (now.writes ? " writes it" : " reads it") +
         " and is not ordered after " + then.what + " on " + name_of(then.stream) + ", which " + did +
         ": an event, a wait or a synchronisation is missing";
}

void finish(const std::function<bool(const Transfer&)>& is_due) {
  std::string wrong;
  auto& all = state().transfers;
  for (size_t i = 0; i < all.size();) {
    if (!is_due(all[i])) {
      i++;
      continue;
    }
    Transfer due = std::move(all[i]);
    all.erase(all.begin() + i);
    std::string found = due.finish();
    if (!found.empty()) find(found);
    if (wrong.empty()) wrong = found;
  }
  TORCH_CHECK(wrong.empty(), wrong);
}

void host_joins(const Clock& clock) {
  join(state().host, clock);
  finish([](const Transfer& t) { return at(state().host, t.stream) >= t.tick; });
}

}  // namespace

std::recursive_mutex& lock() { return state().mutex; }

int device_count() {
  static int count = [] {
    const char* asked = getenv("EMU_DEVICES");
    return asked ? std::min(std::max(atoi(asked), 0), DEFAULTS) : 4;
  }();
  return count;
}

int stream_of(int device, int64_t id) { return id == 0 ? device : (int)id; }

int64_t new_stream(int device) {
  std::lock_guard guard(lock());
  auto& s = state();
  static std::map<int, int> turn;
  if ((int)s.clocks.size() < MOST_STREAMS) {
    s.clocks.emplace_back();
    s.devices.push_back(device);
    return (int64_t)s.clocks.size() - 1;
  }
  int& next = turn[device];  // as a pool, in turn
  do next = next < DEFAULTS || next + 1 >= MOST_STREAMS ? DEFAULTS : next + 1;
  while (s.devices[next] != device);
  return next;
}

std::string name_of(int stream) {
  std::string device = "emu:" + std::to_string(state().devices[stream]);
  return stream < DEFAULTS ? "the default stream of " + device : "stream " + std::to_string(stream) + " of " + device;
}

uint64_t queue(int stream, const std::string& name, const std::vector<Access>& accesses) {
  std::lock_guard guard(lock());
  auto& s = state();
  Clock& clock = s.clocks[stream];
  join(clock, s.host);
  if ((int)clock.size() <= stream) clock.resize(stream + 1, 0);
  uint64_t tick = ++clock[stream];
  for (const auto& access : accesses) {
    if (!access.allocation) continue;
    auto check = [&](const std::vector<Use>& uses, const char* did) {
      for (const auto& use : uses)
        if (use.begin < access.end && access.begin < use.end && !is_before(use, clock)) raise(race(access, name, stream, use, did));
    };
    check(access.allocation->written, "wrote it");
    if (access.writes) check(access.allocation->read, "reads it");
  }
  for (const auto& access : accesses)
    if (access.allocation) remember(access, stream, tick, name);
  return tick;
}

void remember(const Access& access, int stream, uint64_t tick, const std::string& name) {
  std::lock_guard guard(lock());
  Use now{stream, tick, access.begin, access.end, name + " of " + access.tensor};
  Allocation* a = access.allocation;
  a->used.insert_or_assign(stream, now);
  auto covers = [&](const Use& use) { return now.begin <= use.begin && use.end <= now.end && (access.writes || use.stream == stream); };
  std::erase_if(a->read, covers);
  if (access.writes) std::erase_if(a->written, covers);
  (access.writes ? a->written : a->read).push_back(now);
}

void transfer(Transfer copy) {
  std::lock_guard guard(lock());
  state().transfers.push_back(std::move(copy));
}

void finish_transfers_of(Allocation* host, bool also_from) {
  std::lock_guard guard(lock());
  finish([&](const Transfer& t) { return t.host == host && (t.to_host || also_from); });
}

void record(Event& event, int stream) {
  std::lock_guard guard(lock());
  join(state().clocks[stream], state().host);
  event.clock = state().clocks[stream];
  event.capture = capture_on(stream);
  event.at = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void wait(int stream, const Event& event) {
  std::lock_guard guard(lock());
  if (event.capture) join_capture(stream, event.capture);
  join(state().clocks[stream], event.clock);
}

void wait_stream(int stream, int other) {
  std::lock_guard guard(lock());
  join(state().clocks[stream], Clock(state().clocks[other]));
}

void host_waits(const Event& event) {
  std::lock_guard guard(lock());
  host_joins(event.clock);
}

void host_waits(int stream) {
  std::lock_guard guard(lock());
  host_joins(Clock(state().clocks[stream]));
}

std::function<void()>& before_synchronizing() {
  static std::function<void()> call;
  return call;
}

void host_waits_device(int device) {
  if (before_synchronizing()) before_synchronizing()();
  std::lock_guard guard(lock());
  auto& s = state();
  Clock all;
  for (size_t i = 0; i < s.clocks.size(); i++)
    if (s.devices[i] == device) join(all, s.clocks[i]);
  host_joins(all);
}

void find(const std::string& what) {
  std::lock_guard guard(lock());
  state().findings.push_back(what);
  const char* folder = getenv("EMU_FINDINGS");
  if (!folder) return;
  std::string path = std::string(folder) + "/" + std::to_string(getpid()) + ".txt", line = what + "\n";
  int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, line.data(), line.size()) < 0) perror(path.c_str());
  if (file >= 0) ::close(file);
}

void raise(const std::string& what) {
  find(what);
  TORCH_CHECK(false, what);
}

std::vector<std::string> findings(bool clear) {
  std::lock_guard guard(lock());
  auto all = state().findings;
  if (clear) state().findings.clear();
  return all;
}

// Of the freed memory of this stream, is any still in use elsewhere? An allocation may get it from now on.
void check_reuse(int stream) {
  auto& s = state();
  auto waiting = std::move(s.freed[stream]);
  s.freed[stream].clear();
  Clock clock = s.clocks[stream];
  join(clock, s.host);
  for (const auto& f : waiting)
    for (const auto& [other, use] : f.used)
      if (other != stream && !f.recorded.count(other) && !is_before(use, clock))
        raise("race on freed memory: " + use.what + " on " + name_of(other) + " still uses memory of " +
              name_of(stream) + ", which was freed and is allocated anew there: record_stream or a wait is missing");
}

void begin(Allocation* a) {
  auto& s = state();
  if (a->device == PINNED) return;
  check_reuse(a->stream);
  a->written.push_back({a->stream, at(s.clocks[a->stream], a->stream), 0, a->bytes, "the allocation"});
}

void end(Allocation* a) {
  auto& s = state();
  if (a->device == PINNED) {
    auto& all = s.transfers;
    for (size_t i = 0; i < all.size();) {
      if (all[i].host != a) {
        i++;
        continue;
      }
      std::string found = all[i].to_host ? "" : all[i].finish();
      all.erase(all.begin() + i);
      if (!found.empty()) find(found);
    }
    return;
  }
  Clock clock = s.clocks[a->stream];
  join(clock, s.host);
  for (const auto& [other, use] : a->used)
    if (other != a->stream && !a->recorded.count(other) && !is_before(use, clock)) {
      s.freed[a->stream].push_back(*a);
      return;
    }
}

}  // namespace emu
