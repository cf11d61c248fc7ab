// Maps COUNT distinct files executable, a page each, made in DIR and removed at once, then is busy
// in a function of its own until SIGTERM and prints how many it has: `files <count>`. Arguments:
// DIR COUNT.
#include "common.h"
#include <fcntl.h>
#include <sys/mman.h>

WHOLE void FN(spend_among_files)(void) {
  KEEP_FRAME;
  uint64_t x = 1;
  for (int i = 0; i < 1000000; i++) x = xorshift(x) + 5;
  sink = x;
}

// False when the machine does not have it.
static int map_new(const char *path) {
  int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
  if (file < 0) return 0;
  int sized = ftruncate(file, 4096) == 0;
  void *mapped = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
  unlink(path);
  close(file);
  return sized && mapped != MAP_FAILED;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  end_on_signals();
  unsigned long mapped = 0, wanted = strtoul(argv[2], NULL, 10);
  char path[4096];
  while (mapped < wanted && !stop) {
    snprintf(path, sizeof path, "%s/%d-%lu", argv[1], (int)getpid(), mapped);
    if (!map_new(path)) break;
    mapped++;
  }
  while (!stop) FN(spend_among_files)();
  printf("files %lu\n", mapped);
  return mapped == wanted ? 0 : 1;
}
