// Starts the program in its arguments again and again, one after the other, until SIGTERM, then
// prints how many it ran: `ran <count>`.
#include "common.h"
#include <sys/wait.h>

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  end_on_signals();
  unsigned long ran = 0;
  while (!stop) {
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      execv(argv[1], argv + 1);
      _exit(127);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
      ;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 1;
    ran++;
  }
  printf("ran %lu\n", ran);
  return 0;
}
