// Runs code that it generates, and writes other code over it at the same address now and then, as a
// just-in-time compiler does: each generation has a name of its own in the perf map, written before
// it runs, and is called by a function that tells even from odd ones.
//
//   rewriter SECONDS [LIFE]    a new generation every so many seconds; ends after LIFE seconds
#include "common.h"
#include <sys/mman.h>

#define ADDRESS 0x10000000

typedef void (*code_t)(void);

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// Busy for a tenth of the time: who names them needs CPU time too. Uneven, as a steady beat can
// stay between the samples.
static inline void work_until(code_t code, double end) {
  unsigned random = (unsigned)getpid();
  while (!stop && now_s() < end) {
    uint64_t begin = cpu_ns();
    while (cpu_ns() - begin < 2000000) code();
    random = random * 1103515245u + 12345u;
    usleep(4000 + (random >> 16) % 28000);
  }
}

WHOLE void even_generation(code_t code, double end) {
  KEEP_FRAME;
  work_until(code, end);
  sink++;
}

WHOLE void odd_generation(code_t code, double end) {
  KEEP_FRAME;
  work_until(code, end);
  sink += 2;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  double length = atof(argv[1]), life = argc > 2 ? atof(argv[2]) : LIFE_S;
  end_on_signals();
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
  FILE *map = fopen(path, "w");
  if (map == NULL) return 1;
  // push rbp; mov rbp, rsp; mov ecx, 0x10000; dec ecx; jnz -4; pop rbp; ret
  static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0, 0,    1,
                                       0,    0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};
  void *place = mmap((void *)ADDRESS, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (place == MAP_FAILED) return 1;
  double end = now_s() + life;
  for (int generation = 0; !stop && now_s() < end; generation++) {
    memset(place, 0xcc, 4096);
    memcpy(place, code, sizeof code);
    fprintf(map, "%x %x generation_%d\n", ADDRESS, (unsigned)sizeof code, generation);
    fflush(map);
    double until = now_s() + length < end ? now_s() + length : end;
    (generation % 2 == 0 ? even_generation : odd_generation)((code_t)place, until);
  }
  if (argc <= 2) unlink(path);
  return 0;
}
