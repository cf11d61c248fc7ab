// Spends its CPU time below frames that frame pointers do not show, one kind an argument, until
// SIGTERM: deep, thread, signal, tiny, plt, vfork, coroutine, realign, callers; or, as memfd, does
// deep in a copy of itself. Built without frame pointers.
//
// Every function has a name that says who called it; the test knows the order.
#include "common.h"
#include <alloca.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

// Turns of a loop between two looks at the clock: some hundred microseconds.
#define TURNS 100000

WHOLE void spin_leaf(uint64_t turns) {
  uint64_t x = turns | 1;
  for (uint64_t i = 0; i < turns; i++) x = xorshift(x) + 7;
  sink = x;
}

// A callee-saved register in every frame, so that rules have something to restore.
WHOLE uint64_t deep_inner(unsigned depth, uint64_t seed) {
  uint64_t kept = xorshift(seed);
  if (depth == 0) {
    spin_leaf(TURNS);
    return kept;
  }
  uint64_t below = deep_inner(depth - 1, kept);
  // Without this the compiler makes a loop of it.
  __asm__ volatile("" : "+r"(below));
  return below + kept;
}

WHOLE void deep_outer(void) { sink += deep_inner(40, 88172645463325252u); }

WHOLE void run_deep(void) {
  while (!stop) deep_outer();
}

static void *thread_main(void *unused) {
  run_deep();
  return unused;
}

WHOLE void run_thread(void) {
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, thread_main, NULL);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

// The handler takes nearly all of the time; it strikes in the middle of `interrupted_work`.
WHOLE void handler_work(void) {
  for (int i = 0; i < 100; i++) spin_leaf(TURNS);
}

// Strikes once, a little later: a timer that repeats would leave no time between two strikes.
WHOLE void strike_later(void) {
  struct itimerval once = {{0, 0}, {0, 1000}};
  setitimer(ITIMER_VIRTUAL, &once, NULL);
}

WHOLE void on_tick(int signal) {
  (void)signal;
  handler_work();
  strike_later();
}

WHOLE void interrupted_work(void) {
  uint64_t x = 1;
  while (!stop) x = xorshift(x) + 3;
  sink = x;
}

WHOLE void run_signal(void) {
  signal(SIGVTALRM, on_tick);
  strike_later();
  interrupted_work();
  sink++;
}

// What a compiler writes of a push, where it writes any unwind information.
#ifdef NO_TABLES
#define CFI(directive)
#else
#define CFI(directive) directive "\n\t"
#endif

// So short that most samples are in a prologue or an epilogue.
WHOLE uint64_t tiny_leaf(uint64_t x) {
  uint64_t a = x * 3, b = x ^ 5;
#ifdef __aarch64__
  __asm__ volatile("str x19, [sp, #-16]!\n\t" CFI(".cfi_adjust_cfa_offset 16")
                   CFI(".cfi_rel_offset x19, 0") "add %0, %0, %1\n\tldr x19, [sp], #16\n\t"
                   CFI(".cfi_adjust_cfa_offset -16") CFI(".cfi_restore x19")
                   : "+r"(a) : "r"(b));
#else
  __asm__ volatile("push %%rbx\n\t" CFI(".cfi_adjust_cfa_offset 8") CFI(".cfi_rel_offset rbx, 0")
                   "add %1, %0\n\tpop %%rbx\n\t" CFI(".cfi_adjust_cfa_offset -8")
                   CFI(".cfi_restore rbx")
                   : "+r"(a) : "r"(b));
#endif
  return a;
}

WHOLE uint64_t tiny_caller(uint64_t x) {
  for (int i = 0; i < 100000; i++) x = tiny_leaf(x);
  return x;
}

WHOLE void run_tiny(void) {
  while (!stop) sink += tiny_caller(sink);
}

// A library function that does next to nothing: much of the time is in its PLT entry.
WHOLE uint64_t plt_caller(uint64_t x) {
  for (int i = 0; i < 100000; i++) x += (uint64_t)labs((long)x) + (uint64_t)ffsl((long)x);
  return x;
}

WHOLE void run_plt(void) {
  while (!stop) sink += plt_caller(sink);
}

WHOLE void child_work(void) {
  for (int i = 0; i < 200; i++) spin_leaf(TURNS);
}

WHOLE void run_vfork(void) {
  while (!stop) {
    pid_t child = vfork();
    if (child == 0) {
      child_work();
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
  }
}

static ucontext_t outside, inside;

WHOLE void coroutine_work(void) {
  for (int i = 0; i < 200; i++) spin_leaf(TURNS);
}

WHOLE void coroutine_main(void) {
  while (!stop) {
    coroutine_work();
    swapcontext(&inside, &outside);
  }
}

WHOLE void run_coroutine(void) {
  static char stack[256 << 10];
  getcontext(&inside);
  inside.uc_stack.ss_sp = stack;
  inside.uc_stack.ss_size = sizeof stack;
  inside.uc_link = &outside;
  makecontext(&inside, coroutine_main, 0);
  while (!stop) swapcontext(&outside, &inside);
}

// A local that is aligned beyond the stack's own, beside one whose size is known only now: the
// frame is found through a saved pointer to the arguments.
WHOLE uint64_t realigned(unsigned bytes) {
  _Alignas(64) volatile char aligned[64];
  char *sized = alloca(bytes);
  memset(sized, 1, bytes);
  aligned[0] = sized[bytes / 2];
  spin_leaf(TURNS);
  return (uint64_t)aligned[0] + (uint64_t)sized[1];
}

WHOLE void run_realign(void) {
  unsigned bytes = 100;
  while (!stop) {
    sink += realigned(bytes);
    bytes = 100 + bytes % 900;
  }
}

// Two callers of one recursion, at the same depth and with the same frames. The first stops where a
// copy of 16 KiB still reaches the start, the second goes beyond, from where the copy reaches the
// frames that both have in common and not the caller.
#define SHARED_FRAME_BYTES 2048
#define SHALLOW_LEVEL 6
#define DEEP_LEVEL 10
#define SHALLOW_NS 100000000u
#define DEEP_NS 300000000u

static void spin_for(uint64_t ns) {
  uint64_t end = cpu_ns() + ns;
  while (!stop && cpu_ns() < end) spin_leaf(TURNS);
}

WHOLE void shallow_of_a(void) {
  spin_for(SHALLOW_NS);
  sink++;
}

WHOLE void deep_of_b(void) {
  spin_for(DEEP_NS);
  sink += 2;
}

WHOLE uint64_t shared(unsigned levels, void (*work)(void)) {
  volatile char large[SHARED_FRAME_BYTES];
  for (unsigned i = 0; i < sizeof large; i++) large[i] = (char)levels;
  if (levels == 1) work();
  uint64_t above = levels > 1 ? shared(levels - 1, work) : 0;
  return above + (uint64_t)large[levels];
}

WHOLE void via_a(void) { sink += shared(SHALLOW_LEVEL, shallow_of_a); }

WHOLE void via_b(void) { sink += shared(DEEP_LEVEL, deep_of_b); }

WHOLE void run_callers(void) {
  while (!stop) {
    via_a();
    via_b();
  }
}

// Becomes a copy of itself that lies in no file system.
WHOLE void run_memfd(char *name) {
  int from = open("/proc/self/exe", O_RDONLY), to = memfd_create("frames", 0);
  struct stat facts;
  if (fstat(from, &facts) || sendfile(to, from, NULL, (size_t)facts.st_size) != facts.st_size) return;
  char *arguments[] = {name, "deep", NULL};
  fexecve(to, arguments, environ);
}

int main(int argc, char **argv) {
  end_on_signals();
  const char *kind = argc > 1 ? argv[1] : "deep";
  if (!strcmp(kind, "deep")) run_deep();
  if (!strcmp(kind, "thread")) run_thread();
  if (!strcmp(kind, "signal")) run_signal();
  if (!strcmp(kind, "tiny")) run_tiny();
  if (!strcmp(kind, "plt")) run_plt();
  if (!strcmp(kind, "vfork")) run_vfork();
  if (!strcmp(kind, "coroutine")) run_coroutine();
  if (!strcmp(kind, "realign")) run_realign();
  if (!strcmp(kind, "callers")) run_callers();
  if (!strcmp(kind, "memfd")) run_memfd(argv[0]);
  return 0;
}
