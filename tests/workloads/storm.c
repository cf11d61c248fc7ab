// What strangers may do to whoever follows processes, cgroups and mappings: one kind of it, without
// end, until killed.
//
//   storm cgroups DIR   makes and removes cgroups with long names below DIR
//   storm forks         starts processes that run this program again and end
//   storm threads       starts threads by the thousand and lets them end
//   storm names         renames its thread
//   storm maps          maps its own program, executable, all over its address space
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_BYTES = 200, TOGETHER = 64, THREADS = 2000, MAPPINGS = 20000 };

static void cgroups(const char *dir) {
    char path[4096];
    for (unsigned long round = 0;; round++) {
        for (int undo = 0; undo < 2; undo++) {
            for (int at = 0; at < TOGETHER; at++) {
                int used = snprintf(path, sizeof path, "%s/%lu-%d-", dir, round, at);
                memset(path + used, 'x', NAME_BYTES);
                path[used + NAME_BYTES] = 0;
                if (undo) rmdir(path);
                else mkdir(path, 0755);
            }
        }
    }
}

static void forks(const char *self) {
    for (;;) {
        for (int at = 0; at < TOGETHER; at++) {
            if (fork() == 0) {
                execl(self, self, "end", (char *)0);
                _exit(1);
            }
        }
        while (wait(0) > 0) {}
    }
}

static void *nothing(void *unused) {
    return unused;
}

static void threads(void) {
    static pthread_t all[THREADS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    for (;;) {
        int made = 0;
        while (made < THREADS && pthread_create(&all[made], &attributes, nothing, 0) == 0) made++;
        while (made > 0) pthread_join(all[--made], 0);
    }
}

static void names(void) {
    char name[16];
    for (unsigned long number = 0;; number++) {
        snprintf(name, sizeof name, "n%lu", number);
        prctl(PR_SET_NAME, name);
    }
}

static void maps(const char *self) {
    int file = open(self, O_RDONLY);
    for (;;) {
        static void *all[MAPPINGS];
        for (int at = 0; at < MAPPINGS; at++)
            all[at] = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, at % 2 ? 0 : 4096);
        for (int at = 0; at < MAPPINGS; at++)
            if (all[at] != MAP_FAILED) munmap(all[at], 4096);
    }
}

int main(int count, char **words) {
    const char *kind = count > 1 ? words[1] : "";
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) return 1;
    self[length] = 0;
    if (!strcmp(kind, "end")) return 0;
    if (!strcmp(kind, "cgroups") && count > 2) cgroups(words[2]);
    if (!strcmp(kind, "forks")) forks(self);
    if (!strcmp(kind, "threads")) threads();
    if (!strcmp(kind, "names")) names();
    if (!strcmp(kind, "maps")) maps(self);
    return 2;
}
