// Generates code under ever new names at a few addresses, moves it, lets it go and generates other
// code in its place, thousands of times a minute; runs one piece at a time and logs which, when, so
// that every moment has one right name. Arguments: the directory of the jitdump or `-` for a perf
// map, the log, and how long to run in seconds.
//
// A line of the log is a run: begin and end (CLOCK_MONOTONIC, nanoseconds), CPU time of the thread
// between them, address, name. A name holds a number of its own and the slot it was generated for:
// `torture_7_s3`.
#include "common.h"
#include <elf.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

// Where the code lies: few places, each used again and again.
#define ADDRESS 0x10000000
#define SLOTS 8
#define SLOT_BYTES 256
// Length of a run. Unit: nanoseconds of CPU time. Around the distance of two samples at 99 Hz, and
// several of it.
#define RUN_MIN 2000000
#define RUN_SPREAD 20000000
// Turns of the loop between two looks at the clock: some hundred microseconds, so that looking
// takes less than a hundredth of the time.
#define TURNS 200000

// push %rbp; mov %rsp,%rbp; dec %rdi; jnz to the dec; pop %rbp; ret
static const unsigned char CODE[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};

typedef void (*Generated)(uint64_t turns);

struct piece {
  char name[48];
  uint64_t index;
};

static struct piece pieces[SLOTS];  // what lies in each slot; no name: nothing
static int output;
static int map_lines;  // a perf map is written, not a jitdump
static FILE *run_log;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static char *address_of(unsigned slot) { return (char *)ADDRESS + slot * SLOT_BYTES; }

static void put(const void *bytes, size_t size) {
  if (write(output, bytes, size) != (ssize_t)size) abort();
}

struct head {
  uint32_t magic, version, total_size, elf_mach, pad, pid;
  uint64_t timestamp, flags;
};

struct load {
  uint32_t id, total_size;
  uint64_t timestamp;
  uint32_t pid, tid;
  uint64_t vma, code_addr, code_size, code_index;
};

struct move {
  uint32_t id, total_size;
  uint64_t timestamp;
  uint32_t pid, tid;
  uint64_t vma, old_code_addr, new_code_addr, code_size, code_index;
};

// Opens what is written and, for a jitdump, maps it as the mark by which it is found.
static void open_output(const char *dir) {
  char path[512];
  map_lines = strcmp(dir, "-") == 0;
  if (map_lines)
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
  else
    snprintf(path, sizeof path, "%s/jit-%d.dump", dir, (int)getpid());
  output = open(path, O_CREAT | O_TRUNC | O_RDWR, 0644);
  if (output < 0) exit(1);
  if (map_lines) return;
  struct head head = {0x4a695444, 1, sizeof head, EM_X86_64, 0, (uint32_t)getpid(), now_ns(), 0};
  put(&head, sizeof head);
  if (mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_EXEC, MAP_PRIVATE, output, 0) ==
      MAP_FAILED)
    exit(1);
}

static void tell_load(unsigned slot) {
  const struct piece *piece = &pieces[slot];
  size_t name = strlen(piece->name) + 1;
  if (map_lines) {
    char line[96];
    put(line, (size_t)snprintf(line, sizeof line, "%llx %x %s\n", (unsigned long long)address_of(slot),
                               (unsigned)sizeof CODE, piece->name));
    return;
  }
  uint32_t pid = (uint32_t)getpid();
  uint64_t address = (uint64_t)address_of(slot);
  struct load load = {0,       (uint32_t)(sizeof load + name + sizeof CODE),
                      now_ns(), pid, pid, address, address, sizeof CODE, piece->index};
  unsigned char record[sizeof load + sizeof piece->name + sizeof CODE];
  memcpy(record, &load, sizeof load);
  memcpy(record + sizeof load, piece->name, name);
  memcpy(record + sizeof load + name, CODE, sizeof CODE);
  put(record, load.total_size);
}

static void tell_move(unsigned from, unsigned to) {
  if (map_lines) {
    tell_load(to);
    return;
  }
  uint32_t pid = (uint32_t)getpid();
  struct move move = {1, sizeof move, now_ns(), pid, pid, (uint64_t)address_of(to),
                      (uint64_t)address_of(from), (uint64_t)address_of(to), sizeof CODE,
                      pieces[to].index};
  put(&move, sizeof move);
}

static void generate(unsigned slot, uint64_t index) {
  memset(address_of(slot), 0xcc, SLOT_BYTES);
  memcpy(address_of(slot), CODE, sizeof CODE);
  pieces[slot].index = index;
  snprintf(pieces[slot].name, sizeof pieces[slot].name, "torture_%llu_s%u", (unsigned long long)index,
           slot);
  tell_load(slot);
}

static void relocate(unsigned from, unsigned to) {
  memmove(address_of(to), address_of(from), SLOT_BYTES);
  memset(address_of(from), 0xcc, SLOT_BYTES);
  pieces[to] = pieces[from];
  pieces[from].name[0] = 0;
  tell_move(from, to);
}

WHOLE static void run(unsigned slot, uint64_t length) {
  KEEP_FRAME;
  uint64_t begin = now_ns(), from = cpu_ns(), cpu;
  do {
    ((Generated)address_of(slot))(TURNS);
    cpu = cpu_ns() - from;
  } while (cpu < length && !stop);
  uint64_t end = now_ns();
  fprintf(run_log, "%llu %llu %llu %llx %s\n", (unsigned long long)begin, (unsigned long long)end,
          (unsigned long long)cpu, (unsigned long long)address_of(slot), pieces[slot].name);
}

// One CPU, so that its clock ticks evenly over a run: the last one, as tests measure on the others
// too.
static void stay(void) {
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  int cpu = CPU_SETSIZE - 1;
  while (cpu > 0 && !CPU_ISSET(cpu, &set)) cpu--;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  end_on_signals();
  stay();
  void *place = mmap((void *)ADDRESS, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (place == MAP_FAILED) return 1;
  run_log = fopen(argv[2], "w");
  if (run_log == NULL) return 1;
  open_output(argv[1]);
  uint64_t end = now_ns() + (uint64_t)(atof(argv[3]) * 1e9);
  uint64_t random = 0x9e3779b97f4a7c15u, index = 0;
  while (!stop && now_ns() < end) {
    random = xorshift(random);
    unsigned from = (unsigned)(random >> 8) % SLOTS, slot = (unsigned)(random >> 16) % SLOTS;
    unsigned kind = (unsigned)(random >> 24) % 10;
    int there = pieces[from].name[0] != 0;
    if (kind < 2 && there && from != slot)
      relocate(from, slot);
    else if (kind < 4 && there)
      slot = from;  // code of long ago runs again
    else
      generate(slot, index++);
    run(slot, RUN_MIN + (random >> 32) % RUN_SPREAD);
  }
  fclose(run_log);
  printf("torture %llu\n", (unsigned long long)index);
  return 0;
}
