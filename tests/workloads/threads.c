// Two threads, named `left-hand` and `right-hand`, each busy in a function of its own until
// SIGTERM. Prints the CPU time of each: `threads <left ns> <right ns>`.
#include "common.h"
#include <pthread.h>

static uint64_t spent[2];

WHOLE void FN(left_work)(void) {
  KEEP_FRAME;
  uint64_t x = 1;
  for (int i = 0; i < 50000; i++) x = xorshift(x) + 11;
  sink = x;
}

WHOLE void FN(right_work)(void) {
  KEEP_FRAME;
  uint64_t x = 1;
  for (int i = 0; i < 50000; i++) x = xorshift(x) + 13;
  sink = x;
}

static void *left(void *unused) {
  prctl(PR_SET_NAME, "left-hand");
  while (!stop) FN(left_work)();
  spent[0] = cpu_ns();
  return unused;
}

static void *right(void *unused) {
  prctl(PR_SET_NAME, "right-hand");
  while (!stop) FN(right_work)();
  spent[1] = cpu_ns();
  return unused;
}

int main(void) {
  end_on_signals();
  pthread_t threads[2];
  if (pthread_create(&threads[0], NULL, left, NULL)) return 1;
  if (pthread_create(&threads[1], NULL, right, NULL)) return 1;
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
  printf("threads %llu %llu\n", (unsigned long long)spent[0], (unsigned long long)spent[1]);
  return 0;
}
