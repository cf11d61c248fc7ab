// What every workload shares: CPU time of the thread, work measured in loop turns, an end on
// SIGTERM, and a maximum lifetime, so that a killed test leaves nothing running.
#ifndef COMMON_H
#define COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

// Longest life of a workload. Unit: seconds. Longer than any test may take.
#define LIFE_S 150

// Keeps a function whole: not inlined, not merged with an equal one, not cloned.
#if defined(__has_attribute)
#if __has_attribute(noipa)
#define WHOLE __attribute__((noipa))
#endif
#endif
#ifndef WHOLE
#define WHOLE __attribute__((noinline))
#endif

// Names are built with -DPREFIX=word_ where two programs must be told apart.
#ifndef PREFIX
#define PREFIX
#endif
// A number of its own in the code of such a program: names alone do not change its build id.
#ifndef TWIST
#define TWIST 0
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define FN(name) JOIN(PREFIX, name)

// A leaf that touches no stack loses its frame pointer with gcc, whatever the flags say
// (ix86_finalize_stack_frame_flags), and the caller is then missing from every chain. A volatile
// local keeps the frame.
#define KEEP_FRAME volatile char keep_frame = 0; (void)keep_frame

static volatile sig_atomic_t stop;
static volatile uint64_t sink;

static void on_term(int signal) {
  (void)signal;
  stop = 1;
}

// Ends the main loop at SIGTERM, SIGINT or the end of the longest life.
static inline void end_on_signals(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_term;
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGALRM, &action, NULL);
  alarm(LIFE_S);
}

// CPU time of the calling thread in nanoseconds.
static inline uint64_t cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t xorshift(uint64_t x) {
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}
#endif
