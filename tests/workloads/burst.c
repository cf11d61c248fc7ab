// Nearly idle but for one burst at a known moment: 350 ms after a whole second of the wall clock,
// that is 2 to 3 s after the start, it computes without a pause for 300 ms of wall time. Otherwise
// it has a beat of 5 ms of work ten times a second, with half a second of silence on either side of
// the burst. Says `done` after the burst, and at SIGTERM `burst <from> <to> <cpu>`: nanoseconds
// since the Unix epoch, and of CPU time between them.
//
// The burst runs ahead of ordinary programs where it is allowed to: on a loaded machine it is no
// burst otherwise.
#include "common.h"
#include <sched.h>

#define OFFSET_NS 350000000ull
#define BURST_NS 300000000ull
#define BEAT_NS 100000000ull
#define BEAT_WORK_NS 5000000ull
#define SILENCE_NS 500000000ull
#define SECOND_NS 1000000000ull

static uint64_t wall_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t at_ns) {
  struct timespec at = {(time_t)(at_ns / SECOND_NS), (long)(at_ns % SECOND_NS)};
  while (!stop && clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL)) {
  }
}

static void run_ahead(int policy, int priority) {
  struct sched_param param = {.sched_priority = priority};
  (void)sched_setscheduler(0, policy, &param);
}

static inline uint64_t some_work(uint64_t x) {
  for (int i = 0; i < 5000; i++) x = xorshift(x) + 3 + TWIST;
  return x;
}

WHOLE void FN(keep_the_beat)(void) {
  KEEP_FRAME;
  uint64_t x = 5, until_ns = cpu_ns() + BEAT_WORK_NS;
  while (cpu_ns() < until_ns) x = some_work(x);
  sink = x;
}

WHOLE void FN(burst_out)(uint64_t until_ns) {
  KEEP_FRAME;
  uint64_t x = 7;
  while (wall_ns() < until_ns && !stop) x = some_work(x);
  sink = x;
}

int main(void) {
  end_on_signals();
  uint64_t beat = wall_ns();
  uint64_t from = (beat / SECOND_NS + 3) * SECOND_NS + OFFSET_NS, to = 0, spent = 0;
  while (!stop) {
    beat += BEAT_NS;
    if (!to && beat + SILENCE_NS >= from) {
      run_ahead(SCHED_FIFO, 1);
      sleep_until(from);
      uint64_t before = cpu_ns();
      from = wall_ns();
      FN(burst_out)(from + BURST_NS);
      to = wall_ns();
      spent = cpu_ns() - before;
      run_ahead(SCHED_OTHER, 0);
      beat = to + SILENCE_NS;
      puts("done");
      fflush(stdout);
      continue;
    }
    sleep_until(beat);
    if (!stop) FN(keep_the_beat)();
  }
  printf("burst %llu %llu %llu\n", (unsigned long long)from, (unsigned long long)to, (unsigned long long)spent);
  return 0;
}
