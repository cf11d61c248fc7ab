// Spends 70, 20 and 10 % of its CPU time in three functions until SIGTERM, then prints the true
// split: `split <ns> <ns> <ns>`.
//
// The split is held by measurement: each call runs for about 0.3 ms, its CPU time is read before
// and after, and the next function is drawn with odds that lead back to the wanted shares. Lengths
// and order are random, so that the pattern cannot run in step with a sampling clock.
//
// Arguments: [-c COMM] sets the task name; [-t SECONDS] ends after that much CPU time; [-p PERCENT]
// rests in between, so that it takes that much of a CPU.
#include "common.h"

#define PARTS 3
static const double SHARE[PARTS] = {0.7, 0.2, 0.1};
// How far shares may stray before the odds lean against it. Unit: nanoseconds of CPU time.
static const double SLACK_NS = 5e6;
// Shortest rest. Longer ones leave the kernel and the C library a smaller share of the samples.
// Unit: nanoseconds.
static const double REST_NS = 20e6;

WHOLE void FN(spend_seventy)(uint64_t turns) {
  KEEP_FRAME;
  uint64_t x = turns | 1;
  for (uint64_t i = 0; i < turns; i++) x = xorshift(x) + 7 + TWIST;
  sink = x;
}

WHOLE void FN(spend_twenty)(uint64_t turns) {
  KEEP_FRAME;
  uint64_t x = turns | 3;
  for (uint64_t i = 0; i < turns; i++) x = xorshift(x) + 2 + TWIST;
  sink = x;
}

WHOLE void FN(spend_ten)(uint64_t turns) {
  KEEP_FRAME;
  uint64_t x = turns | 5;
  for (uint64_t i = 0; i < turns; i++) x = xorshift(x) + 1 + TWIST;
  sink = x;
}

// Runs one part and returns its CPU time. A frame of its own between main and the leaf.
WHOLE uint64_t FN(run_part)(int part, uint64_t turns) {
  uint64_t before = cpu_ns();
  if (part == 0) FN(spend_seventy)(turns);
  else if (part == 1) FN(spend_twenty)(turns);
  else FN(spend_ten)(turns);
  return cpu_ns() - before;
}

int main(int argc, char **argv) {
  double limit_s = 1e9, percent = 100, rest_ns = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "-c")) prctl(PR_SET_NAME, argv[i + 1]);
    if (!strcmp(argv[i], "-t")) limit_s = atof(argv[i + 1]);
    if (!strcmp(argv[i], "-p")) percent = atof(argv[i + 1]);
  }
  end_on_signals();

  uint64_t random = 0x9e3779b97f4a7c15u ^ ((uint64_t)getpid() << 20);
  uint64_t spent[PARTS] = {0, 0, 0}, total = 0;
  double turns_per_ns = 0.3;
  while (!stop && total < limit_s * 1e9) {
    double odds[PARTS], sum = 0;
    for (int i = 0; i < PARTS; i++) {
      odds[i] = SHARE[i] * (SLACK_NS + total) - spent[i];
      if (odds[i] < 0) odds[i] = 0;
      sum += odds[i];
    }
    random = xorshift(random);
    double draw = (random >> 11) * 0x1p-53 * sum;
    int part = 0;
    while (part < PARTS - 1 && draw >= odds[part]) draw -= odds[part++];

    random = xorshift(random);
    double wanted_ns = 150e3 + (random >> 11) * 0x1p-53 * 300e3;
    uint64_t turns = (uint64_t)(wanted_ns * turns_per_ns) + 1;
    uint64_t took = FN(run_part)(part, turns);
    spent[part] += took;
    total += took;
    rest_ns += took * (100 / percent - 1);
    if (rest_ns >= REST_NS) {
      struct timespec rest = {rest_ns / 1e9, (long)rest_ns % 1000000000};
      nanosleep(&rest, NULL);
      rest_ns = 0;
    }
    // Follows the machine's speed; a turn that was disturbed must not lead astray.
    double seen = turns / (took + 1.0);
    if (seen > 0.01 && seen < 10) turns_per_ns += (seen - turns_per_ns) * 0.05;
  }
  printf("split %llu %llu %llu\n", (unsigned long long)spent[0], (unsigned long long)spent[1],
         (unsigned long long)spent[2]);
  return 0;
}
