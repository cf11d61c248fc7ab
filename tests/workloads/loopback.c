// Sends datagrams to itself over the loopback interface until SIGTERM: each is delivered by a soft
// interrupt on the way out of the system call. Prints how many: `datagrams <count>`.
#include "common.h"
#include <arpa/inet.h>
#include <sys/socket.h>

static char buffer[1400];

int main(int argc, char **argv) {
  if (argc > 2 && !strcmp(argv[1], "-c")) prctl(PR_SET_NAME, argv[2]);
  end_on_signals();
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof place;
  int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
  if (in < 0 || out < 0 || bind(in, (struct sockaddr *)&place, length) ||
      getsockname(in, (struct sockaddr *)&place, &length))
    return 1;
  unsigned long long count = 0;
  while (!stop) {
    if (sendto(out, buffer, sizeof buffer, 0, (struct sockaddr *)&place, length) < 0) break;
    if (recv(in, buffer, sizeof buffer, 0) < 0) break;
    count++;
  }
  printf("datagrams %llu\n", count);
  return 0;
}
