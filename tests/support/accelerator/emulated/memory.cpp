// Memory of its own pages, which the host can touch only while a kernel or copy has opened it.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "order.h"

namespace emu {

void begin(Allocation* a);
void end(Allocation* a);

namespace {

std::map<const char*, Allocation*> allocations;  // by address
std::atomic<bool> used{false}, bad_fork{false};
int64_t now_allocated[17] = {0}, most_allocated[17] = {0};
struct sigaction previous;

size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void guard_pages(Allocation* a, int rights) {
  int failed = mprotect(a->data, whole_pages(a->bytes), rights);
  TORCH_CHECK(!failed, "emu: mprotect failed: ", strerror(errno));
}

void say(const char* text) {
  ssize_t written = ::write(2, text, strlen(text));
  (void)written;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (lock().try_lock()) {
    Allocation* a = find_allocation(info->si_addr);
    lock().unlock();
    if (a) {
      char text[256];
      if (a->device == PINNED)
        snprintf(text, sizeof text, "host access: pinned memory of %zu bytes is used before a copy to it is done", a->bytes);
      else
        snprintf(text, sizeof text, "host access: the host touches memory of emu:%d (%zu bytes)", a->device, a->bytes);
      say(text);
      say("\n");
      find(text);
    }
  }
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);  // Python's faulthandler shows the stack
  }
  ::signal(signal, SIG_DFL);  // and the access, repeated, ends the process
}

}  // namespace

char* allocate(size_t bytes, int device, int stream, Allocation** made) {
  std::lock_guard guard(lock());
  use_device();
  *made = nullptr;
  if (!bytes) return nullptr;
  auto* a = new Allocation{nullptr, bytes, device, stream};
  *made = a;
  begin(a);
  int rights = device == PINNED ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* data = mmap(nullptr, whole_pages(bytes), rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, data != MAP_FAILED, "emu: out of memory: ", bytes, " bytes");
  a->data = (char*)data;
  allocations[a->data] = a;
  now_allocated[device + 1] += bytes;
  most_allocated[device + 1] = std::max(most_allocated[device + 1], now_allocated[device + 1]);
  return a->data;
}

void release(Allocation* a) {
  if (!a) return;
  std::lock_guard guard(lock());
  end(a);
  allocations.erase(a->data);
  now_allocated[a->device + 1] -= a->bytes;
  munmap(a->data, whole_pages(a->bytes));
  delete a;
}

void open(Allocation* a) {
  if (!a || a->device == PINNED) return;
  std::lock_guard guard(lock());
  if (a->open++ == 0) guard_pages(a, PROT_READ | PROT_WRITE);
}

void close(Allocation* a) {
  if (!a || a->device == PINNED) return;
  std::lock_guard guard(lock());
  if (--a->open == 0) guard_pages(a, PROT_NONE);
}

void protect(Allocation* a, bool unreadable) {
  std::lock_guard guard(lock());
  guard_pages(a, unreadable ? PROT_NONE : PROT_READ | PROT_WRITE);
}

Allocation* find_allocation(const void* address) {
  std::lock_guard guard(lock());
  auto next = allocations.upper_bound((const char*)address);
  if (next == allocations.begin()) return nullptr;
  Allocation* a = std::prev(next)->second;
  return (const char*)address < a->data + whole_pages(a->bytes) ? a : nullptr;
}

void use_device() {
  TORCH_CHECK(!bad_fork, "Cannot re-initialize emu in a forked subprocess: its parent had used a device before the fork");
  used = true;
}

bool is_used() { return used; }

bool is_bad_fork() { return bad_fork; }

void watch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
  pthread_atfork([] { lock().lock(); }, [] { lock().unlock(); }, [] {
    new (&lock()) std::recursive_mutex();  // its owner was a thread of the parent
    if (used) bad_fork = true;
  });
}

std::vector<int64_t> memory(int device) {
  std::lock_guard guard(lock());
  return {now_allocated[device + 1], most_allocated[device + 1]};
}

void reset_peak(int device) {
  std::lock_guard guard(lock());
  most_allocated[device + 1] = now_allocated[device + 1];
}

}  // namespace emu
