// Code without a frame of its own, as GHC compiles it: entered by a jump of a function that has
// saved all registers, it keeps what continues it elsewhere. It calls C now and then, with the
// stack aligned for that.
#include "common.h"

// What is not described has to be more than all the rest, as it is in a program of GHC.
__asm__(".text\n"
        ".globl run\n"
        ".type run, @function\n"
        "run:\n"
        ".cfi_startproc\n"
        "sub $0x30, %rsp\n"
        "mov %rsp, %rax\n"
        "sub $0x400, %rsp\n"
        "mov %rbx, (%rax)\n"
        "mov %rbp, 8(%rax)\n"
        "mov %r12, 16(%rax)\n"
        "mov %r13, 24(%rax)\n"
        "mov %r14, 32(%rax)\n"
        "mov %r15, 40(%rax)\n"
        ".cfi_def_cfa rsp, 0x438\n"
        "mov %rsi, %r13\n"
        "mov %rdi, %rax\n"
        "jmp *%rax\n"
        ".globl run_return\n"
        "run_return:\n"
        "add $0x400, %rsp\n"
        "mov (%rsp), %rbx\n"
        "mov 8(%rsp), %rbp\n"
        "mov 16(%rsp), %r12\n"
        "mov 24(%rsp), %r13\n"
        "mov 32(%rsp), %r14\n"
        "mov 40(%rsp), %r15\n"
        "add $0x30, %rsp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size run, . - run\n"
        // Registers that calls keep hold what they like here: rbp is the other stack.
        ".globl continued\n"
        ".type continued, @function\n"
        "continued:\n"
        "mov $other_stack, %rbp\n"
        "mov $7, %rbx\n"
        "1: mov $2000000, %r12\n"
        "2: dec %r12\n"
        "jnz 2b\n"
        "sub $8, %rsp\n"
        "mov $1000000, %edi\n"
        "call called\n"
        "add $8, %rsp\n"
        "dec %r13\n"
        "jnz 1b\n"
        "jmp run_return\n"
        ".size continued, . - continued\n"
        ".fill 4 << 20, 1, 0x90\n"
        ".bss\n"
        "other_stack: .skip 4096\n"
        ".text\n");

void run(void (*code)(void), long rounds);
void continued(void);

WHOLE void called(unsigned rounds) {
  for (volatile unsigned i = 0; i < rounds; i++) {
  }
}

WHOLE static void scheduled(void) {
  run(continued, 100);
  KEEP_FRAME;
}

int main(void) {
  end_on_signals();
  while (!stop) scheduled();
  return 0;
}
