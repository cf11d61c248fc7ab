// Maps pages of FILE executable, COUNT times, none of which the kernel can merge with its
// neighbour, then is busy in a function of its own until SIGTERM and prints how many it has:
// `mappings <count>`. Arguments: FILE COUNT.
#include "common.h"
#include <fcntl.h>
#include <sys/mman.h>

WHOLE void FN(spend_among_mappings)(void) {
  KEEP_FRAME;
  uint64_t x = 1;
  for (int i = 0; i < 1000000; i++) x = xorshift(x) + 5;
  sink = x;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  end_on_signals();
  int file = open(argv[1], O_RDONLY | O_CLOEXEC);
  if (file < 0) return 1;
  unsigned long mapped = 0, wanted = strtoul(argv[2], NULL, 10);
  while (mapped < wanted && !stop) {
    off_t offset = (off_t)(mapped % 2) * 4096;
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, offset) == MAP_FAILED) break;
    mapped++;
  }
  while (!stop) FN(spend_among_mappings)();
  printf("mappings %lu\n", mapped);
  return mapped == wanted ? 0 : 1;
}
