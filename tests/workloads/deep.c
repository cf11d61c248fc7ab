// Spends its CPU time under a deep recursion, with frame pointers all the way, until SIGTERM.
// Arguments: DEPTH in frames.
#include "common.h"

WHOLE void FN(descend)(long depth) {
  KEEP_FRAME;
  if (depth > 0) {
    FN(descend)(depth - 1);
  } else {
    uint64_t x = 1;
    for (int i = 0; i < 1000000; i++) x = xorshift(x) + 3;
    sink = x;
  }
  keep_frame = 1;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  end_on_signals();
  while (!stop) FN(descend)(atol(argv[1]));
  return 0;
}
