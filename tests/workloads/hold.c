// hold PID: stops the thread `fp-sampler` of a process, and no other, until it is told to end, or
// for two minutes. The thread is held in its wait, where it has no lock: elsewhere it is let go and
// stopped again. It goes on when this program ends, however that is. Prints `held` when it has it.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static int find(const char *pid) {
  char path[512], name[32] = "";
  snprintf(path, sizeof path, "/proc/%s/task", pid);
  DIR *tasks = opendir(path);
  if (!tasks)
    fail("opendir");
  for (struct dirent *task; (task = readdir(tasks));) {
    snprintf(path, sizeof path, "/proc/%s/task/%s/comm", pid, task->d_name);
    FILE *comm = fopen(path, "r");
    if (comm && fgets(name, sizeof name, comm) && !strcmp(name, "fp-sampler\n"))
      return atoi(task->d_name);
    if (comm)
      fclose(comm);
  }
  errno = ESRCH;
  fail("fp-sampler");
  return 0;
}

// True when the thread, which is stopped, is in the wait of an epoll.
static int waits(int tid) {
  char path[64];
  long number = -1;
  snprintf(path, sizeof path, "/proc/%d/syscall", tid);
  FILE *file = fopen(path, "r");
  if (!file || fscanf(file, "%ld", &number) != 1)
    number = -1;
  if (file)
    fclose(file);
#ifdef SYS_epoll_wait
  if (number == SYS_epoll_wait)
    return 1;
#endif
#ifdef SYS_epoll_pwait2
  if (number == SYS_epoll_pwait2)
    return 1;
#endif
  return number == SYS_epoll_pwait;
}

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  alarm(120);
  int tid = find(argv[1]), status;
  if (ptrace(PTRACE_SEIZE, tid, 0, 0))
    fail("PTRACE_SEIZE");
  for (;;) {
    if (ptrace(PTRACE_INTERRUPT, tid, 0, 0))
      fail("PTRACE_INTERRUPT");
    if (waitpid(tid, &status, __WALL) != tid || !WIFSTOPPED(status))
      fail("waitpid");
    if (waits(tid))
      break;
    if (ptrace(PTRACE_CONT, tid, 0, 0))
      fail("PTRACE_CONT");
    struct timespec pause = {0, 3000000};
    nanosleep(&pause, 0);
  }
  puts("held");
  fflush(stdout);
  for (;;)
    pause();
}
