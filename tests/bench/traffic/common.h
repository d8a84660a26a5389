/* What both ends of the load generator share: settings, bytes, sockets, and the counts of what was sent and has
 * arrived. Part of `load.c`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

enum { LBTRM, TCP, NATS, PLAIN };
enum { DATA_HEADER = 20, LBMC_HEADER = 12, FRAG_BLOCK = 16, DATAGRAM_MAX = 8192, BATCHING_MIN = 2048 };
enum { BATCHING_NS = 200000000 }; /* UM's default interval */
enum { TRAIN_MAX = 65000, TRAIN_DATAGRAMS = 64 };
enum { MAX_SESSIONS = 256, MAX_TOPICS = 1 << 18, MAX_SINKS = 16, MAX_SIZES = 64, MAX_CLIENTS = 8 };
enum { BURST = 64, SLOTS = 1 << 18 }; /* SLOTS: datagrams of a session that are remembered */
#define RING (32u << 20)
#define STREAM (1u << 20)
#define NS_PER_S 1000000000ull
#define STAMPS 20 /* of a payload: when it was sent, the number of its topic, when its topic was sent before */

/* settings */
static int kind, trains, packed, in_order, books, n_sizes, sizes[MAX_SIZES], large_permille, large_bytes = 30000;
static atomic_long window = 1024, rate, loss_ppm, sink_loss_ppm;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * NS_PER_S + t.tv_nsec;
}
static void die(const char *what) {
  fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
  exit(1);
}
static void *room_for(size_t n, size_t size) {
  void *p = calloc(n, size);
  if (!p) die("memory");
  return p;
}
static uint32_t drawn(uint32_t *state) { /* xorshift */
  uint32_t x = *state;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return *state = x;
}
static int is_unlucky(long ppm, uint32_t *state) { return ppm && drawn(state) % 1000000 < ppm; }
static void put16(uint8_t *p, uint32_t v) { v = htons(v), memcpy(p, &v, 2); }
static void put32(uint8_t *p, uint32_t v) { v = htonl(v), memcpy(p, &v, 4); }
static uint32_t get16(const uint8_t *p) { return p[0] << 8 | p[1]; }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }
static struct sockaddr_in address(const char *ip, int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  if (!inet_aton(ip, &a.sin_addr)) die(ip);
  return a;
}
static void set_option(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}
static void watch(int ep, int fd, uint32_t tag) {
  struct epoll_event e = {.events = EPOLLIN, .data.u32 = tag};
  if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) die("epoll");
}
static int udp_socket(void) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  struct in_addr lo = {htonl(INADDR_LOOPBACK)};
  if (fd < 0) die("socket");
  for (int option = SO_SNDBUF; option <= SO_RCVBUF; option++) {
    set_option(fd, SOL_SOCKET, option, 8 << 20);
    set_option(fd, SOL_SOCKET, option == SO_RCVBUF ? SO_RCVBUFFORCE : SO_SNDBUFFORCE, 8 << 20);
  }
  setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &lo, sizeof lo);
  set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, 0);
  return fd;
}
static int connected(struct sockaddr_in to) { /* -1: nobody listens there */
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) die("socket");
  if (connect(fd, (void *)&to, sizeof to)) {
    close(fd);
    return -1;
  }
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  return fd;
}
static int write_all(int fd, const void *data, size_t n) {
  for (const char *p = data; n;) {
    ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return -1;
    p += k, n -= k;
  }
  return 0;
}

/* what both ends know */
typedef struct {
  atomic_ulong received, duplicates, again, naks, gone, topics, lost_ns;
  uint32_t *seen; /* by topic: the mark under which it was last seen */
  uint64_t *newest; /* by topic: when the newest message that has come was sent */
  struct taken { /* by topic, with `books`: bit n of `bits` says that the message of that sqn has come */
    uint64_t *bits, words;
  } *taken;
  int ep, n, nak_fd, fds[MAX_SESSIONS], n_heard;
  struct heard *heard;
} Sink;
static Sink sinks[MAX_SINKS];
static int n_sinks, n_topics, wake_fd;
static atomic_ulong sent, written_off, target, omitted, repaired;
static atomic_int is_waiting, is_paused = 1, has_paused, epoch = 1;
static atomic_ulong mark_ns;
static atomic_long left = -1; /* messages that may still be sent, -1: no limit */
static uint64_t latencies[64 * 64]; /* of the first sink: 64 octaves of 64 */

static unsigned long credit(void) {
  unsigned long least = ~0ul;
  for (int i = 0; i < n_sinks; i++) {
    unsigned long r = atomic_load(&sinks[i].received);
    if (r < least) least = r;
  }
  return (n_sinks ? least : 0) + atomic_load(&written_off);
}
static void arrived(Sink *s, unsigned long n) {
  atomic_fetch_add(&s->received, n);
  if (atomic_load(&is_waiting) && credit() >= atomic_load(&target)) {
    atomic_store(&is_waiting, 0);
    eventfd_write(wake_fd, 1);
  }
}
static void note(Sink *s, uint32_t topic, uint32_t sqn) {
  struct taken *of = &s->taken[topic];
  uint64_t at = sqn / 64, bit = 1ull << sqn % 64, words = 2 * at + 64;
  if (at >= of->words) {
    if (!(of->bits = realloc(of->bits, 8 * words))) die("memory");
    memset(of->bits + of->words, 0, 8 * (words - of->words));
    of->words = words;
  }
  if (of->bits[at] & bit) atomic_fetch_add(&s->again, 1);
  of->bits[at] |= bit;
}
static int look(Sink *s, const uint8_t *payload, uint32_t sqn, uint64_t t) { /* 0 for a stranger's */
  uint64_t then, before; /* when it was sent, and the message of its topic before it */
  uint32_t topic;
  memcpy(&then, payload, 8);
  memcpy(&topic, payload + 8, 4);
  memcpy(&before, payload + 12, 8);
  if (!then) return 0;
  if (books && (topic >= (uint32_t)n_topics || then > t || t - then > 1000 * NS_PER_S)) return 0;
  if (s == sinks) {
    uint64_t ns = t > then ? t - then : 0;
    int o = ns ? 63 - __builtin_clzll(ns) : 0, sub = o >= 6 ? (ns >> (o - 6)) & 63 : ns & 63;
    latencies[o * 64 + sub]++;
  }
  if (books) note(s, topic, sqn);
  if (topic < (uint32_t)n_topics) {
    if (before > s->newest[topic] && before >= mark_ns && before < then && before > s->lost_ns) s->lost_ns = before;
    if (then > s->newest[topic]) s->newest[topic] = then;
  }
  if (topic < (uint32_t)n_topics && s->seen[topic] != (uint32_t)epoch && then >= mark_ns) {
    s->seen[topic] = epoch;
    atomic_fetch_add(&s->topics, 1);
  }
  return 1;
}
static double latency_us(double part) {
  uint64_t all = 0, sum = 0;
  for (int i = 0; i < 4096; i++) all += latencies[i];
  for (int i = 0; all && i < 4096; i++)
    if ((sum += latencies[i]) >= part * all) {
      int o = i / 64;
      return (o >= 6 ? (1ull << o) + (double)(i % 64) * (1ull << (o - 6)) : i % 64) / 1000;
    }
  return 0;
}
/* Counts the data messages of a datagram or stream; `*used`: bytes of whole messages. */
static unsigned long walk(Sink *s, const uint8_t *p, size_t n, uint64_t t, size_t *used) {
  unsigned long found = 0;
  size_t at = 0;
  while (n - at >= 4) {
    size_t length = get16(p + at + 2);
    if (length < 4) die("message of no length");
    if (length > n - at) break;
    if (!(p[at] & 15)) {
      size_t head = LBMC_HEADER + (p[at + 1] == 1 ? FRAG_BLOCK : 0);
      if (length >= head + STAMPS) found += look(s, p + at + head, get32(p + at + 8), t);
      else found += !books;
    }
    at += length;
  }
  *used = at;
  return found;
}
