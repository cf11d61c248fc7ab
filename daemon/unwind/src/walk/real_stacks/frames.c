/* Writes down its own stack as a sample would have it: the registers at the first instruction of a
   function, the bytes of the stack, and who really called whom, which each function notes of
   itself. With an argument it does so in the handler of a signal. */
#include <alloca.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#if defined(__aarch64__)
#define REGISTERS 33
#define SP_AT 31
__asm__(".text\n"
        ".type capture, %function\n"
        "capture:\n"
        ".cfi_startproc\n"
        "stp x0, x1, [x0]\nstp x2, x3, [x0, #16]\nstp x4, x5, [x0, #32]\nstp x6, x7, [x0, #48]\n"
        "stp x8, x9, [x0, #64]\nstp x10, x11, [x0, #80]\nstp x12, x13, [x0, #96]\n"
        "stp x14, x15, [x0, #112]\nstp x16, x17, [x0, #128]\nstp x18, x19, [x0, #144]\n"
        "stp x20, x21, [x0, #160]\nstp x22, x23, [x0, #176]\nstp x24, x25, [x0, #192]\n"
        "stp x26, x27, [x0, #208]\nstp x28, x29, [x0, #224]\nstr x30, [x0, #240]\n"
        "mov x1, sp\nstr x1, [x0, #248]\nadr x1, capture\nstr x1, [x0, #256]\nret\n"
        ".cfi_endproc\n"
        ".size capture, .-capture\n"
        ".type strike, %function\n"
        "strike:\n"
        ".cfi_startproc\n"
        "mov x1, #0\n"
        ".globl strike_here\nstrike_here:\n"
        "ldr x1, [x1]\nret\n"
        ".cfi_endproc\n"
        ".size strike, .-strike\n"
        /* Keeps a frame pointer, and nothing describes it. */
        ".type undescribed, %function\n"
        "undescribed:\n"
        "stp x29, x30, [sp, #-32]!\nmov x29, sp\nblr x0\nldp x29, x30, [sp], #32\nret\n"
        ".size undescribed, .-undescribed\n");
#else
#define REGISTERS 17
#define SP_AT 7
__asm__(".text\n"
        ".type capture, @function\n"
        "capture:\n"
        ".cfi_startproc\n"
        "mov %rax, (%rdi)\nmov %rbx, 8(%rdi)\nmov %rcx, 16(%rdi)\nmov %rdx, 24(%rdi)\n"
        "mov %rsi, 32(%rdi)\nmov %rdi, 40(%rdi)\nmov %rbp, 48(%rdi)\nmov %rsp, 56(%rdi)\n"
        "lea capture(%rip), %rax\nmov %rax, 64(%rdi)\nmov %r8, 72(%rdi)\nmov %r9, 80(%rdi)\n"
        "mov %r10, 88(%rdi)\nmov %r11, 96(%rdi)\nmov %r12, 104(%rdi)\nmov %r13, 112(%rdi)\n"
        "mov %r14, 120(%rdi)\nmov %r15, 128(%rdi)\nret\n"
        ".cfi_endproc\n"
        ".size capture, .-capture\n"
        ".type strike, @function\n"
        "strike:\n"
        ".cfi_startproc\n"
        "xor %eax, %eax\n"
        ".globl strike_here\nstrike_here:\n"
        "mov (%rax), %rax\nret\n"
        ".cfi_endproc\n"
        ".size strike, .-strike\n"
        ".type undescribed, @function\n"
        "undescribed:\n"
        "push %rbp\nmov %rsp, %rbp\nsub $16, %rsp\ncall *%rdi\nleave\nret\n"
        ".size undescribed, .-undescribed\n");
#endif

extern void capture(uint64_t *registers);
extern void strike(void);
extern char strike_here[];
extern long undescribed(long (*function)(void));

static uint64_t registers[REGISTERS];
static uint64_t callers[64];
static int depth;
static char stack[256 << 10];
static char *stack_end;
static int by_signal;

/* Where the function returns to that says so; 0: not known. */
#define CALLER (uint64_t)__builtin_extract_return_addr(__builtin_return_address(0))

static void words(const char *what, const uint64_t *from, size_t count) {
  printf("%s", what);
  for (size_t at = 0; at < count; at++)
    printf(" %llx", (unsigned long long)from[at]);
  printf("\n");
}

static __attribute__((noinline)) void say(void) {
  callers[depth++] = CALLER;
  capture(registers);
  char *begin = (char *)registers[SP_AT];
  size_t size = (size_t)(stack_end - begin) & ~(size_t)7;
  if (size > sizeof stack)
    abort();
  memcpy(stack, begin, size);
  words("registers", registers, REGISTERS);
  words("callers", callers, (size_t)depth);
  words("stack", (uint64_t *)stack, size / 8);
  fflush(stdout);
  _Exit(0);
}

static void handler(int number) {
  (void)number;
  callers[depth++] = 0;
  callers[depth++] = (uint64_t)strike_here;
  /* It lies in code outside the program, and that code is read. */
  uint64_t back = CALLER;
  callers[depth++] = back;
  words("returns", (uint64_t *)(back & ~(uint64_t)7), 2);
  say();
}

static __attribute__((noinline)) long leaf(void) {
  callers[depth++] = CALLER;
  if (by_signal)
    strike();
  else
    say();
  return 1;
}

/* A frame of a size that is known when it runs. */
static __attribute__((noinline)) long grows(long more) {
  callers[depth++] = CALLER;
  char *room = alloca((size_t)more * 16);
  memset(room, 1, (size_t)more * 16);
  long found = leaf();
  return found + room[more];
}

static __attribute__((noinline)) long large(long more) {
  callers[depth++] = CALLER;
  volatile char room[20000];
  memset((char *)room, 2, sizeof room);
  long found = grows(more + 7);
  return found + room[more];
}

/* Keeps values over calls in as many registers as there are. */
static __attribute__((noinline)) long saves(const volatile long *in) {
  callers[depth++] = CALLER;
  long a = in[0], b = in[1], c = in[2], d = in[3], e = in[4], f = in[5], g = in[6], h = in[7];
  long found = large(a);
  found += a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h;
  found += large(b);
  return found + (a ^ b ^ c ^ d ^ e ^ f ^ g ^ h);
}

static long called(void) {
  callers[depth++] = CALLER;
  static volatile long in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  return saves(in) + 1;
}

static __attribute__((noinline)) long calls(void) {
  callers[depth++] = CALLER;
#ifdef UNDESCRIBED
  /* What this returns to is in no list: 0 is as good as any. */
  callers[depth++] = 0;
  return undescribed(called) + 1;
#else
  long (*volatile function)(void) = called;
  return function() + 1;
#endif
}

int main(int count, char **arguments) {
  stack_end = (char *)arguments;
  by_signal = count > 1;
  struct sigaction action = {.sa_handler = handler};
  sigaction(SIGSEGV, &action, NULL);
  callers[depth++] = CALLER;
  return calls() == 0;
}
