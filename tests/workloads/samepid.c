// Runs two programs one after the other under the same pid: the second is made with clone3 and a
// chosen pid (needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE). Prints the pid: `pid <number>`.
//
// Arguments: FIRST SECOND MILLISECONDS; each program is given the milliseconds. Exits with 3 where
// the kernel refuses the chosen pid.
#include "common.h"
#include <errno.h>
#include <linux/sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int finish(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return 1;
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  end_on_signals();
  pid_t first = fork();
  if (first < 0) return 1;
  if (first == 0) {
    execl(argv[1], argv[1], argv[3], (char *)NULL);
    _exit(127);
  }
  if (finish(first)) return 1;

  struct clone_args args;
  memset(&args, 0, sizeof args);
  pid_t wanted = first;
  args.exit_signal = SIGCHLD;
  args.set_tid = (uint64_t)(uintptr_t)&wanted;
  args.set_tid_size = 1;
  long second = syscall(SYS_clone3, &args, sizeof args);
  if (second < 0) return 3;
  if (second == 0) {
    execl(argv[2], argv[2], argv[3], (char *)NULL);
    _exit(127);
  }
  if (finish((pid_t)second)) return 1;
  printf("pid %d\n", (int)second);
  return 0;
}
