// Runs for the given milliseconds of CPU time (20 by default) in one named function and ends.
#include "common.h"

WHOLE void FN(brief_work)(uint64_t until_ns) {
  KEEP_FRAME;
  uint64_t x = until_ns | 1;
  do {
    for (int i = 0; i < 20000; i++) x = xorshift(x) + 3 + TWIST;
  } while (cpu_ns() < until_ns && !stop);
  sink = x;
}

int main(int argc, char **argv) {
  end_on_signals();
  double ms = argc > 1 ? atof(argv[1]) : 20;
  FN(brief_work)(cpu_ns() + (uint64_t)(ms * 1e6));
  return 0;
}
