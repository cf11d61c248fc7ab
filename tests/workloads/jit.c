// Runs code that it generates at a fixed address until SIGTERM, once its perf map is there,
// whatever kind of file that is.
#include "common.h"
#include <sys/mman.h>
#include <sys/stat.h>

#define ADDRESS 0x10000000

int main(void) {
  end_on_signals();
  char map[64];
  struct stat facts;
  snprintf(map, sizeof map, "/tmp/perf-%d.map", (int)getpid());
  while (!stop && lstat(map, &facts)) usleep(1000);

  // mov ecx, 0x10000; dec ecx; jnz -4; ret
  static const unsigned char code[] = {0xb9, 0, 0, 1, 0, 0xff, 0xc9, 0x75, 0xfc, 0xc3};
  void *place = mmap((void *)ADDRESS, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (place == MAP_FAILED) return 1;
  memcpy(place, code, sizeof code);
  // Busy for a tenth of the time: several of them must leave CPU time for who names them. Uneven,
  // as a steady beat of ten milliseconds can stay between the samples of a 99 Hz clock.
  unsigned random = (unsigned)getpid();
  while (!stop) {
    uint64_t begin = cpu_ns();
    while (cpu_ns() - begin < 1000000) ((void (*)(void))place)();
    random = random * 1103515245u + 12345u;
    usleep(2000 + (random >> 16) % 14000);
  }
  return 0;
}
