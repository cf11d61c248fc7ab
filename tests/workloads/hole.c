// A thread that spins below a frame whose pages nobody has touched: the kernel's copy of its stack
// ends there.
#include "common.h"
#include <pthread.h>

// Two whole pages at least, and well within the copy.
#define UNTOUCHED_BYTES 9000

WHOLE void below(void) {
  for (uint64_t turn = 0; !stop; turn++) sink += turn;
}

WHOLE void with_hole(void) {
  char untouched[UNTOUCHED_BYTES];
  __asm__ volatile("" : : "r"(untouched) : "memory");
  below();
  sink += 2;
}

WHOLE void *in_thread(void *nothing) {
  with_hole();
  sink++;
  return nothing;
}

int main(void) {
  end_on_signals();
  pthread_t thread;
  if (pthread_create(&thread, NULL, in_thread, NULL) != 0) return 1;
  pthread_join(thread, NULL);
  return 0;
}
