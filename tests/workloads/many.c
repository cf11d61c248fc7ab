// Starts COUNT threads, each with a name of its own and a millisecond of work every second, until
// SIGTERM, then prints how many there are: `many <count>`. Arguments: COUNT.
#include "common.h"
#include <pthread.h>

WHOLE void FN(thread_work)(void) {
  KEEP_FRAME;
  uint64_t x = 1, begin = cpu_ns();
  while (cpu_ns() - begin < 100000)
    for (int i = 0; i < 1000; i++) x = xorshift(x) + 9;
  sink = x;
}

static void *work(void *number) {
  char name[16];
  snprintf(name, sizeof name, "many-%ld", (long)(intptr_t)number);
  prctl(PR_SET_NAME, name);
  while (!stop) {
    FN(thread_work)();
    usleep(1000000);
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  end_on_signals();
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 << 10);
  long started = 0, wanted = atol(argv[1]);
  pthread_t thread;
  while (started < wanted && !pthread_create(&thread, &small, work, (void *)(intptr_t)started))
    started++;
  while (!stop) usleep(10000);
  printf("many %ld\n", started);
  fflush(stdout);
  _exit(started == wanted ? 0 : 1);
}
