// What happens before what: clocks of streams and of the host, uses of each allocation, and what was found wrong.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace emu {

constexpr int PINNED = -1;  // "device" of pinned host memory

using Clock = std::vector<uint64_t>;  // of each stream, how many of its operations have happened before

struct Use {
  int stream;
  uint64_t tick;
  size_t begin, end;  // bytes of the allocation
  std::string what;   // operator and tensor
};

struct Allocation {
  char* data;
  size_t bytes;  // as asked; the mapping has whole pages
  int device;
  int stream = 0;  // it was allocated on
  int open = 0;    // kernels that run on it now
  std::vector<Use> written;  // of each byte the last; the first is the allocation
  std::vector<Use> read;     // since then
  std::map<int, Use> used;  // of each stream the last
  std::set<int> recorded;   // by record_stream
};

struct Access {
  Allocation* allocation;
  bool writes;
  std::string tensor;  // dtype and shape
  size_t begin = 0, end = SIZE_MAX;
};

// A copy that the host may not rely on yet. finish brings it about on the host and returns what it found wrong.
struct Transfer {
  int stream;
  uint64_t tick;
  Allocation* host;
  bool to_host;
  std::function<std::string()> finish;
};

struct Capture;

struct Event {
  Clock clock;
  double at = 0;  // seconds
  Capture* capture = nullptr;  // of the stream
};

std::recursive_mutex& lock();

int device_count();
int stream_of(int device, int64_t id);
int64_t new_stream(int device);
Capture* capture_on(int stream);
void join_capture(int stream, Capture* capture);
std::string name_of(int stream);

// Queue an operation on a stream. Throws where an access is not ordered; returns the operation's tick.
uint64_t queue(int stream, const std::string& name, const std::vector<Access>& accesses);
void transfer(Transfer copy);
void finish_transfers_of(Allocation* host, bool also_from);  // before the device reads or writes that memory
void remember(const Access& access, int stream, uint64_t tick, const std::string& name);

void record(Event& event, int stream);
void wait(int stream, const Event& event);
void wait_stream(int stream, int other);
void host_waits(const Event& event);
void host_waits(int stream);
void host_waits_device(int device);
std::function<void()>& before_synchronizing();  // called when the host is to wait for a device

void find(const std::string& what);  // keeps it, for findings() and the folder EMU_FINDINGS
void raise(const std::string& what);
std::vector<std::string> findings(bool clear);

char* allocate(size_t bytes, int device, int stream, Allocation** made);
void release(Allocation* allocation);
void open(Allocation* allocation);
void close(Allocation* allocation);
void protect(Allocation* allocation, bool unreadable);  // pinned memory that a copy is yet to fill
Allocation* find_allocation(const void* address);
void use_device();  // throws in a process forked from one that has used a device
bool is_used();
bool is_bad_fork();
void watch_faults();
std::vector<int64_t> memory(int device);  // bytes allocated now, and at most
void reset_peak(int device);

}  // namespace emu
