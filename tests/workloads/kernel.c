// Spends nearly all of its CPU time in the kernel: reads zeros into a buffer until SIGTERM, then
// prints its user and system time: `times <user ns> <system ns>`.
#include "common.h"
#include <fcntl.h>
#include <sys/resource.h>

static char buffer[1 << 20];

WHOLE void FN(read_zeros)(int fd) {
  KEEP_FRAME;
  for (int i = 0; i < 16 && !stop; i++)
    if (read(fd, buffer, sizeof buffer) < 0) break;
}

int main(int argc, char **argv) {
  if (argc > 2 && !strcmp(argv[1], "-c")) prctl(PR_SET_NAME, argv[2]);
  end_on_signals();
  int fd = open("/dev/zero", O_RDONLY);
  if (fd < 0) return 1;
  while (!stop) FN(read_zeros)(fd);
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  printf("times %llu %llu\n",
         (unsigned long long)use.ru_utime.tv_sec * 1000000000u + use.ru_utime.tv_usec * 1000u,
         (unsigned long long)use.ru_stime.tv_sec * 1000000000u + use.ru_stime.tv_usec * 1000u);
  return 0;
}
