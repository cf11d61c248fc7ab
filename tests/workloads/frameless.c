// Spins in generated code that keeps no frame pointer and leaves its frame as it finds it, with
// return addresses of earlier calls in it. It is entered in the two ways of compilers: through a
// pointer, and by a jump out of assembler that has several ways in and lends its frame. With
// BY_TABLE the earlier calls went through the linkage table too.
#include "common.h"
#include <sys/mman.h>

// mov r8, rbp; sub rsp, 0x300; xor ebp, ebp; mov ecx, 20000000; dec ecx; jnz; add rsp; mov rbp, r8
#define BODY                                                                                       \
  0x49, 0x89, 0xe8, 0x48, 0x81, 0xec, 0x00, 0x03, 0x00, 0x00, 0x31, 0xed, 0xb9, 0x00, 0x2d, 0x31,   \
      0x01, 0xff, 0xc9, 0x75, 0xfc, 0x48, 0x81, 0xc4, 0x00, 0x03, 0x00, 0x00, 0x4c, 0x89, 0xc5
static const unsigned char returning[] = {BODY, 0xc3};
static const unsigned char leaving[] = {BODY, 0xff, 0xe6};

// Jumps to its first argument, with where that is to go on in the second.
void vm_call(void *code, void *leave);
void vm_leave(void);
__asm__(".text\n"
        ".type vm, @function\n"
        "vm:\n"
        ".cfi_startproc\n"
        "  nop\n"
        "vm_call:\n"
        "  push %rbx\n"
        ".cfi_adjust_cfa_offset 8\n"
        ".cfi_rel_offset rbx, 0\n"
        "  sub $64, %rsp\n"
        ".cfi_adjust_cfa_offset 64\n"
        "  jmp *%rdi\n"
        "vm_leave:\n"
        "  add $64, %rsp\n"
        ".cfi_adjust_cfa_offset -64\n"
        "  pop %rbx\n"
        ".cfi_adjust_cfa_offset -8\n"
        ".cfi_restore rbx\n"
        "  ret\n"
        ".cfi_endproc\n"
        ".size vm, . - vm\n");

// Leaves its return addresses where the generated code has its frame.
WHOLE int litter(int deeper) {
  volatile int kept = deeper;
#ifdef BY_TABLE
  char text[32];
  snprintf(text, sizeof text, "%d", deeper);
  kept += text[0];
#endif
  return deeper == 0 ? kept : litter(deeper - 1) + kept;
}

WHOLE void enter_by_pointer(void *code) {
  ((void (*)(void))code)();
  sink++;
}

WHOLE void enter_by_jump(void *code) {
  vm_call(code, (void *)vm_leave);
  sink += 2;
}

WHOLE void run(unsigned char *code) {
  while (!stop) {
    litter(40);
    enter_by_pointer(code);
    litter(40);
    enter_by_jump(code + sizeof returning);
  }
}

int main(void) {
  end_on_signals();
  unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED) return 1;
  memcpy(code, returning, sizeof returning);
  memcpy(code + sizeof returning, leaving, sizeof leaving);
  if (mprotect(code, 4096, PROT_READ | PROT_EXEC) != 0) return 1;
  run(code);
  return 0;
}
