// Forks children that end at once, RATE a second, until SIGTERM, then prints how many:
// `forks <count>`. Arguments: RATE.
#include "common.h"
#include <sys/wait.h>

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  end_on_signals();
  const long rate = atol(argv[1]);
  struct timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  unsigned long forks = 0;
  while (!stop) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (double)(now.tv_sec - start.tv_sec) + (now.tv_nsec - start.tv_nsec) * 1e-9;
    if ((double)forks > passed * rate) {
      usleep(1000);
      continue;
    }
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) _exit(0);
    while (waitpid(child, NULL, 0) < 0)
      ;
    forks++;
  }
  printf("forks %lu\n", forks);
  return 0;
}
