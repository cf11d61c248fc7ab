// Spends the given seconds of CPU time in `before_exec`, then becomes the program in the rest of
// its arguments: the same pid with another address space and name.
//
// Arguments: SECONDS PROGRAM [ARGUMENT…]
#include "common.h"

WHOLE void FN(before_exec)(uint64_t until_ns) {
  KEEP_FRAME;
  uint64_t x = until_ns | 1;
  do {
    for (int i = 0; i < 20000; i++) x = xorshift(x) + 9 + TWIST;
  } while (cpu_ns() < until_ns && !stop);
  sink = x;
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  end_on_signals();
  FN(before_exec)(cpu_ns() + (uint64_t)(atof(argv[1]) * 1e9));
  if (stop) return 0;
  execv(argv[2], argv + 2);
  return 127;
}
