// Spends its CPU time in a loop that is inlined into another function, until it is killed.
//
// The lines of the loop say so: tests look for them.
static volatile unsigned long sink;

static inline __attribute__((always_inline)) void hot(unsigned long rounds) {
  for (unsigned long i = 0; i < rounds; i++)  // loop
    sink += i * i;                            // loop
}

__attribute__((noinline)) static void outer(void) { hot(1000000); }

int main(void) {
  for (;;) outer();
}
