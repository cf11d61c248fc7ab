// Works below a frame far larger than any copy of the stack, until SIGTERM. Arguments: a word.
//   long       one call that never returns
//   turns MS   two callers of the same frame at the same depth take turns, each for MS; the leaf
//              shows which of them is running
//   thread MS [TURN]  runs in a thread for MS: one call, or calls of the two in turns of TURN
//   held       one call that never returns, in a thread with stack pages that are never paged in
#include "common.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef FRAME_BYTES
#define FRAME_BYTES (100 << 10)
#endif
#define HELD_BYTES (64 << 10)
#define STACK_BYTES (1 << 20)

static uint64_t end_ns;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static WHOLE void spin(void) {
  uint64_t x = 1;
  for (int i = 0; i < 100000; i++) x = xorshift(x) + 3;
  sink = x;
}

WHOLE void spin_one(void) {
  while (!stop && now_ns() < end_ns) spin();
  sink++;
}

WHOLE void spin_other(void) {
  while (!stop && now_ns() < end_ns) spin();
  sink += 2;
}

// The frame: all of it is touched, so that the kernel could copy it.
WHOLE void big_frame(void (*work)(void)) {
  volatile char room[FRAME_BYTES];
  for (int i = 0; i < FRAME_BYTES; i += 512) room[i] = (char)i;
  work();
  sink += (uint64_t)room[sink % FRAME_BYTES];
}

WHOLE void caller_one(void) {
  big_frame(spin_one);
  sink += 3;
}

WHOLE void caller_other(void) {
  big_frame(spin_other);
  sink += 4;
}

static WHOLE void run_long(void) {
  end_ns = UINT64_MAX;
  caller_one();
  sink++;
}

static WHOLE void run_turns(uint64_t turn_ns) {
  for (int turn = 0; !stop; turn++) {
    end_ns = now_ns() + turn_ns;
    if (turn % 2) caller_other(); else caller_one();
  }
}

// Its frame holds pages that were never touched: whoever reads them waits for a userfaultfd.
static WHOLE void *held_main(void *fd) {
  volatile char room[HELD_BYTES];
  uintptr_t start = ((uintptr_t)room + 4095) & ~(uintptr_t)4095;
  struct uffdio_register range = {
    .range = {.start = start, .len = HELD_BYTES - 8192},
    .mode = UFFDIO_REGISTER_MODE_MISSING,
  };
  if (ioctl((int)(intptr_t)fd, UFFDIO_REGISTER, &range)) _exit(3);
  run_long();
  sink += (uint64_t)(uintptr_t)room;
  return NULL;
}

static int run_held(void) {
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API};
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) return 3;
  void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  if (stack == MAP_FAILED || pthread_attr_setstack(&attributes, stack, STACK_BYTES)) return 3;
  if (pthread_create(&thread, &attributes, held_main, (void *)(intptr_t)fd)) return 3;
  pthread_join(thread, NULL);
  return 0;
}

static uint64_t life_ns, turn_ns;

static WHOLE void *thread_main(void *unused) {
  uint64_t until_ns = now_ns() + life_ns;
  for (int turn = 0; !stop && now_ns() < until_ns; turn++) {
    end_ns = now_ns() + turn_ns;
    if (turn % 2) caller_other(); else caller_one();
  }
  return unused;
}

static int run_thread(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, thread_main, NULL)) return 3;
  pthread_join(thread, NULL);
  return 0;
}

int main(int argc, char **argv) {
  end_on_signals();
  if (argc == 2 && !strcmp(argv[1], "long")) run_long();
  else if (argc == 3 && !strcmp(argv[1], "turns")) run_turns(strtoull(argv[2], NULL, 10) * 1000000);
  else if (argc == 2 && !strcmp(argv[1], "held")) return run_held();
  else if (argc >= 3 && argc <= 4 && !strcmp(argv[1], "thread")) {
    life_ns = strtoull(argv[2], NULL, 10) * 1000000;
    turn_ns = argc == 4 ? strtoull(argv[3], NULL, 10) * 1000000 : life_ns;
    return run_thread();
  }
  else return 2;
  return 0;
}
