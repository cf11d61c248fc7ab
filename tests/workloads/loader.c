// Loads a shared library that was built from a workload and becomes that workload.
// Arguments: LIBRARY [its arguments].
#include "common.h"
#include <dlfcn.h>

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  end_on_signals();
  void *library = dlopen(argv[1], RTLD_NOW);
  int (*run)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "main") : NULL;
  return run ? run(argc - 1, argv + 1) : 1;
}
