// Wakes whoever reads the FIFO named by its first argument, a hundred times a second, until
// SIGTERM.
#include "common.h"
#include <fcntl.h>

WHOLE void FN(knock)(int door) {
  KEEP_FRAME;
  if (write(door, "x", 1) != 1) stop = 1;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  end_on_signals();
  int door = open(argv[1], O_WRONLY);
  while (!stop && door >= 0) {
    FN(knock)(door);
    usleep(10000);
  }
  return 0;
}
