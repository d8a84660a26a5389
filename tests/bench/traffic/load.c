/* Load generator of `tests.bench.mix` and `tests.bench.scale`: one source thread and some sink threads in one process,
 * so that one clock and one count of what has arrived serve both ends.
 *
 * The source writes what a UM source would send: LBT-RM datagrams, LBT-TCP streams (or NATS PUBs, or plain datagrams),
 * in an order and of sizes that are drawn by chance. It answers NAKs from what it has sent and writes session messages
 * while it is idle. In a closed loop it keeps at most `window` messages beyond the slowest sink, so that nothing is
 * lost for lack of flow control; `rate` makes it an open loop. A sink counts the LBMC messages of datagrams or streams,
 * each datagram once, and sends NAKs for what is missing.
 *
 * Orders come by stdin, a line each, and are answered by a line each:
 *   set KEY VALUE            before `open`: see `settings`; `rate`, `window`, `loss` and `sinkloss` also later
 *   session IP PORT ID GROUP DPORT   a session of the source: its NAK port (LBT-RM), its listening port (TCP), or the
 *                            address to which it connects or sends (NATS, plain datagrams: GROUP and DPORT)
 *   topic SESSION INDEX      topics are numbered from 0 as they come
 *   open                     make the sockets of the source
 *   sink                     begin another sink; what follows is its own
 *   join GROUP DPORT         it hears this group (LBT-RM, plain datagrams)
 *   connect IP PORT ID       it connects to this session (TCP, NATS)
 *   start                    the threads begin, the source pauses
 *   resume, pause            the source; `resume N`: N messages at most
 *   reset                    latencies from here on
 *   mark                     topics seen from here on
 *   report                   the counts, in JSON
 * End of input ends it. Build: gcc -O2 -pthread load.c */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdarg.h>
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
enum { TRAIN_MAX = 65000, TRAIN_DATAGRAMS = 64 };
enum { MAX_SESSIONS = 256, MAX_TOPICS = 1 << 18, MAX_SINKS = 16, MAX_SIZES = 64, MAX_CLIENTS = 8 };
enum { BURST = 64, SLOTS = 1 << 16 }; /* SLOTS: datagrams of a session that are remembered */
#define RING (32u << 20)
#define STREAM (1u << 20)
#define NS_PER_S 1000000000ull

/* settings */
static int kind, trains, packed, in_order, n_sizes, sizes[MAX_SIZES], large_permille, large_bytes = 30000;
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
static int connected(struct sockaddr_in to) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (void *)&to, sizeof to)) die("connect");
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
  atomic_ulong received, duplicates, naks, gone, topics;
  uint32_t *seen; /* by topic: the mark under which it was last seen */
  int ep, n, nak_fd, fds[MAX_SESSIONS], n_heard;
  struct heard *heard;
} Sink;
static Sink sinks[MAX_SINKS];
static int n_sinks, n_topics, wake_fd;
static atomic_ulong sent, written_off, target, omitted, repaired;
static atomic_int is_waiting, is_paused = 1, has_paused, epoch = 1;
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
static void look(Sink *s, const uint8_t *payload, uint64_t t) {
  uint64_t then;
  uint32_t topic;
  memcpy(&then, payload, 8);
  memcpy(&topic, payload + 8, 4);
  if (s == sinks) {
    uint64_t ns = t > then ? t - then : 0;
    int o = ns ? 63 - __builtin_clzll(ns) : 0, sub = o >= 6 ? (ns >> (o - 6)) & 63 : ns & 63;
    latencies[o * 64 + sub]++;
  }
  if (topic < (uint32_t)n_topics && s->seen[topic] != (uint32_t)epoch) {
    s->seen[topic] = epoch;
    atomic_fetch_add(&s->topics, 1);
  }
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
      if (length >= head + 12) look(s, p + at + head, t);
      found++;
    }
    at += length;
  }
  *used = at;
  return found;
}

/* the source */
typedef struct {
  struct sockaddr_in own, to;
  uint32_t id, sqn, sm_sqn;
  int fd, n_clients, clients[MAX_CLIENTS], has_sent;
  uint8_t *pending;
  size_t length;
  uint64_t at[SLOTS]; /* by sqn: where the datagram lies in the ring ... */
  uint32_t size[SLOTS]; /* ... and its size */
} Session;
typedef struct {
  int session;
  uint32_t index, sqn;
} Topic;
static Session *sessions[MAX_SESSIONS];
static Topic *topics;
static int n_sessions, source_ep, source_fd;
static uint8_t *ring;
static uint64_t ring_at;
static uint32_t chance = 2463534242u, bad_luck = 88675123u;
/* datagrams that wait for one sendmmsg */
static struct mmsghdr out[BURST];
static struct iovec out_iov[BURST];
static uint8_t out_control[BURST][64];
static Session *out_of[BURST];
static uint32_t out_size[BURST]; /* of the datagrams of the train */
static int n_out;

static void send_out(void) {
  for (int at = 0; at < n_out;) {
    int k = sendmmsg(source_fd, out + at, n_out - at, 0);
    if (k > 0) at += k;
    else if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR) die("sendmmsg");
  }
  n_out = 0;
}
static int joins_train(const Session *s, const uint8_t *datagram, size_t size) {
  if (!trains || !n_out || out_of[n_out - 1] != s) return 0;
  struct iovec *v = &out_iov[n_out - 1];
  uint32_t each = out_size[n_out - 1];
  int is_next = (uint8_t *)v->iov_base + v->iov_len == datagram;
  return size == each && is_next && v->iov_len + size <= TRAIN_MAX && v->iov_len / each < TRAIN_DATAGRAMS;
}
static void put_out(Session *s, uint8_t *datagram, size_t size) {
  struct iovec *v;
  if (joins_train(s, datagram, size)) {
    v = &out_iov[n_out - 1];
    v->iov_len += size;
    struct msghdr *m = &out[n_out - 1].msg_hdr;
    m->msg_control = out_control[n_out - 1], m->msg_controllen = CMSG_SPACE(2);
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = IPPROTO_UDP, c->cmsg_type = UDP_SEGMENT, c->cmsg_len = CMSG_LEN(2);
    memcpy(CMSG_DATA(c), &out_size[n_out - 1], 2);
    return;
  }
  if (n_out == BURST) send_out();
  v = &out_iov[n_out];
  v->iov_base = datagram, v->iov_len = size;
  out_of[n_out] = s, out_size[n_out] = size;
  struct msghdr *m = &out[n_out].msg_hdr;
  memset(m, 0, sizeof *m);
  m->msg_name = &s->to, m->msg_namelen = sizeof s->to, m->msg_iov = v, m->msg_iovlen = 1;
  if (s->own.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) { /* another host: its address is that of the datagram */
    m->msg_control = out_control[n_out], m->msg_controllen = CMSG_SPACE(sizeof(struct in_pktinfo));
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = IPPROTO_IP, c->cmsg_type = IP_PKTINFO, c->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
    struct in_pktinfo info = {.ipi_spec_dst = s->own.sin_addr};
    memcpy(CMSG_DATA(c), &info, sizeof info);
  }
  n_out++;
}
static void drop_client(int fd) {
  for (int i = 0; i < n_sessions; i++)
    for (int k = 0; k < sessions[i]->n_clients; k++)
      if (sessions[i]->clients[k] == fd) sessions[i]->clients[k] = sessions[i]->clients[--sessions[i]->n_clients];
  close(fd);
}
static void flush(Session *s) {
  if (!s->length) return;
  if (kind == TCP || kind == NATS) {
    for (int i = s->n_clients - 1; i >= 0; i--)
      if (write_all(s->clients[i], s->pending, s->length)) drop_client(s->clients[i]);
    s->length = 0;
    return;
  }
  size_t size = DATA_HEADER + s->length;
  if (ring_at % RING + size > RING) ring_at += RING - ring_at % RING;
  uint8_t *d = ring + ring_at % RING;
  d[0] = d[1] = 0;
  put16(d + 2, ntohs(s->own.sin_port)), put32(d + 4, s->id), put32(d + 8, s->sqn);
  uint32_t trail = s->sqn - (SLOTS >> 1);
  put32(d + 12, (int32_t)trail < 0 ? 0 : trail);
  d[16] = 0x80, d[17] = 3, put16(d + 18, s->sqn & 7);
  memcpy(d + DATA_HEADER, s->pending, s->length);
  s->at[s->sqn % SLOTS] = ring_at, s->size[s->sqn % SLOTS] = size;
  ring_at += size;
  s->sqn++, s->length = 0;
  if (s->has_sent++ && is_unlucky(loss_ppm, &bad_luck)) atomic_fetch_add(&omitted, 1);
  else put_out(s, d, size);
}
static void add(int number, size_t length, uint64_t t, uint32_t first, size_t offset, size_t total) {
  Topic *topic = &topics[number];
  Session *s = sessions[topic->session];
  uint8_t *p;
  if (kind == NATS) {
    s->length += sprintf((char *)s->pending + s->length, "PUB t %zu\r\n", length);
    p = s->pending + s->length;
    memcpy(p + length, "\r\n", 2);
    s->length += length + 2;
  } else {
    size_t head = LBMC_HEADER + (total ? FRAG_BLOCK : 0), size = head + length;
    if (kind != TCP && s->length + size > DATAGRAM_MAX - DATA_HEADER) flush(s);
    p = s->pending + s->length;
    p[0] = 0, p[1] = total ? 1 : 0;
    put16(p + 2, size), put32(p + 4, topic->index), put32(p + 8, topic->sqn++);
    if (total) {
      p[12] = 0, p[13] = FRAG_BLOCK, put16(p + 14, 0);
      put32(p + 16, first), put32(p + 20, offset), put32(p + 24, total);
    }
    s->length += size;
    p += head;
  }
  if (length >= 12) memcpy(p, &t, 8), memcpy(p + 8, &number, 4);
  if (kind == TCP || kind == NATS ? s->length > STREAM / 4 : !packed || s->length >= BATCHING_MIN) flush(s);
}
/* One message; returns the fragments that it takes. */
static long add_message(uint64_t t) {
  static uint32_t turn;
  int number = in_order ? turn++ % n_topics : drawn(&chance) % n_topics;
  if (!large_permille || drawn(&chance) % 1000 >= (uint32_t)large_permille) {
    add(number, sizes[n_sizes > 1 ? drawn(&chance) % n_sizes : 0], t, 0, 0, 0);
    return 1;
  }
  size_t most = (kind == TCP ? 65535 : DATAGRAM_MAX - DATA_HEADER) - LBMC_HEADER - FRAG_BLOCK, offset = 0;
  uint32_t first = topics[number].sqn;
  long n = 0;
  for (; offset < (size_t)large_bytes; offset += most, n++) {
    size_t rest = large_bytes - offset;
    add(number, rest < most ? rest : most, t, first, offset, large_bytes);
  }
  return n;
}
static void on_nak(Session *s) {
  uint8_t nak[9000];
  ssize_t n;
  while ((n = recv(s->fd, nak, sizeof nak, MSG_DONTWAIT)) >= 12) {
    if (nak[0] != 3 || get32(nak + 4) != s->id) continue;
    for (size_t i = 0, count = get16(nak + 8); i < count && 16 + 4 * i <= (size_t)n; i++) {
      uint32_t sqn = get32(nak + 12 + 4 * i), at = sqn % SLOTS;
      if (s->sqn - sqn - 1 >= SLOTS || !s->size[at] || ring_at - s->at[at] > RING - (1 << 17)) continue;
      uint8_t *d = ring + s->at[at] % RING;
      d[16] |= 0x20;
      atomic_fetch_add(&repaired, 1);
      if (!is_unlucky(loss_ppm, &bad_luck)) put_out(s, d, s->size[at]);
    }
    send_out();
  }
}
static void tell_where(void) { /* session messages */
  for (int i = 0; kind == LBTRM && i < n_sessions; i++) {
    Session *s = sessions[i];
    uint8_t m[24] = {2};
    put16(m + 2, ntohs(s->own.sin_port)), put32(m + 4, s->id), put32(m + 8, s->sm_sqn++), put32(m + 12, s->sqn - 1);
    m[20] = 0x80, m[21] = 3;
    if (!s->sqn) continue;
    put_out(s, m, sizeof m);
    send_out();
  }
}
static void serve(int timeout_ms) {
  struct epoll_event events[64];
  int n = epoll_wait(source_ep, events, 64, timeout_ms);
  for (int i = 0; i < n; i++) {
    uint32_t tag = events[i].data.u32;
    eventfd_t ignored;
    char junk[4096];
    if (tag == MAX_SESSIONS) eventfd_read(wake_fd, &ignored);
    else if (tag > MAX_SESSIONS) { /* what a TCP client says, its end too */
      int fd = tag - MAX_SESSIONS - 1;
      if (recv(fd, junk, sizeof junk, MSG_DONTWAIT) <= 0) drop_client(fd);
    } else if (kind == TCP) {
      Session *s = sessions[tag];
      int fd = accept(s->fd, 0, 0);
      struct timeval patience = {2, 0};
      if (fd < 0) continue;
      if (s->n_clients == MAX_CLIENTS) close(fd);
      else {
        set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        s->clients[s->n_clients++] = fd;
        watch(source_ep, fd, MAX_SESSIONS + 1 + fd);
      }
    } else on_nak(sessions[tag]);
  }
}
static void open_source(void) {
  source_ep = epoll_create1(0);
  wake_fd = eventfd(0, EFD_NONBLOCK);
  watch(source_ep, wake_fd, MAX_SESSIONS);
  source_fd = udp_socket();
  if (kind == LBTRM || kind == PLAIN) ring = room_for(1, RING);
  for (int i = 0; i < n_sessions; i++) {
    Session *s = sessions[i];
    if (kind == NATS) {
      s->fd = s->clients[s->n_clients++] = connected(s->own);
      const char *hello = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n";
      if (write_all(s->fd, hello, strlen(hello))) die("nats");
      watch(source_ep, s->fd, MAX_SESSIONS + 1 + s->fd);
    } else if (kind != PLAIN) {
      s->fd = socket(AF_INET, kind == TCP ? SOCK_STREAM : SOCK_DGRAM, 0);
      if (kind == TCP) set_option(s->fd, SOL_SOCKET, SO_REUSEADDR, 1);
      if (bind(s->fd, (void *)&s->own, sizeof s->own)) die("address of a session");
      if (kind == TCP && listen(s->fd, 16)) die("listen");
      watch(source_ep, s->fd, i);
    }
  }
}
static void *source(void *unused) {
  (void)unused;
  prctl(PR_SET_NAME, "source");
  prctl(PR_SET_TIMERSLACK, 1);
  uint64_t began = now_ns(), told = 0, moved = began, due_base = 0;
  unsigned long before = 0;
  int was_paused = 1;
  for (int i = 0; i < MAX_SESSIONS; i++) serve(0); /* who has connected gets the first message */
  for (;;) {
    long n = 0, w = atomic_load(&window), r = atomic_load(&rate), may = atomic_load(&left);
    unsigned long s = atomic_load(&sent), c = credit();
    uint64_t t = now_ns();
    if (c != before) before = c, moved = t;
    if (!atomic_load(&is_paused)) {
      n = w - (long)(s - c);
      if (was_paused) began = t, due_base = s, moved = t;
      if (r) {
        long due = (long)((t - began) * 1e-9 * r) - (long)(s - due_base);
        if (due > r / 100 + 2) began += (uint64_t)((due - 1) * 1e9 / r), due = 1; /* the machine paused: no backlog */
        if (due < n) n = due;
      }
      if (may >= 0 && n > may) n = may;
      if (n > BURST) n = BURST;
    }
    was_paused = n <= 0 && atomic_load(&is_paused);
    if (n > 0) {
      long done = 0;
      while (done < n) done += add_message(t);
      for (int i = 0; i < n_sessions && (kind == TCP || kind == NATS); i++) flush(sessions[i]);
      send_out();
      if (may >= 0) atomic_fetch_sub(&left, done);
      atomic_fetch_add(&sent, done);
      serve(0);
      continue;
    }
    for (int i = 0; i < n_sessions; i++) flush(sessions[i]); /* stands for the interval of implicit batching */
    send_out();
    if (was_paused) atomic_store(&has_paused, 1);
    if (t - moved > 10000000 && t - told > 200000000) tell_where(), told = t;
    if (!was_paused && w - (long)(s - c) <= 0 && t - moved > 1500000000) { /* lost for good: go on without */
      atomic_fetch_add(&written_off, s - c);
      moved = t;
    }
    if (r && !was_paused && w - (long)(s - c) > 0 && may) {
      struct timespec nap = {0, 100000};
      nanosleep(&nap, 0);
      serve(0);
      continue;
    }
    atomic_store(&target, s - w / 2), atomic_store(&is_waiting, 1);
    if (was_paused || may == 0 || credit() < atomic_load(&target)) serve(10);
    atomic_store(&is_waiting, 0);
  }
  return 0;
}

/* the sinks */
struct heard { /* an LBT-RM session */
  struct sockaddr_in to; /* its NAK port */
  uint32_t id, low, next; /* everything below `low` has come, nothing from `next` on */
  uint64_t nak_at;
  uint64_t has[SLOTS / 64];
};
static int is_session(const struct heard *h, const struct sockaddr_in *from, uint16_t port, uint32_t id) {
  return h->id == id && h->to.sin_port == port && h->to.sin_addr.s_addr == from->sin_addr.s_addr;
}
static struct heard *heard_session(Sink *s, const struct sockaddr_in *from, const uint8_t *d) {
  static __thread struct heard *last;
  uint32_t id = get32(d + 4);
  uint16_t port = htons(get16(d + 2));
  if (last && is_session(last, from, port, id)) return last;
  for (int i = 0; i < s->n_heard; i++)
    if (is_session(&s->heard[i], from, port, id)) return last = &s->heard[i];
  struct heard *h = &s->heard[s->n_heard < MAX_SESSIONS - 1 ? s->n_heard++ : s->n_heard - 1];
  memset(h, 0, sizeof *h);
  h->to = *from, h->to.sin_port = port, h->id = id;
  h->low = h->next = d[0] ? get32(d + 12) + 1 : get32(d + 8);
  return last = h;
}
static int has(const struct heard *h, uint32_t sqn) { return h->has[sqn % SLOTS / 64] >> sqn % 64 & 1; }
static void hears_up_to(Sink *s, struct heard *h, uint32_t end) { /* nothing from `end` on has come */
  if (end - h->next > SLOTS / 2) { /* too far: begin again */
    atomic_fetch_add(&s->gone, h->next - h->low);
    h->low = h->next = end;
    return;
  }
  for (; h->next != end; h->next++) h->has[h->next % SLOTS / 64] &= ~(1ull << h->next % 64);
  for (; h->next - h->low > SLOTS / 2; h->low++) atomic_fetch_add(&s->gone, !has(h, h->low));
}
static unsigned long on_datagram(Sink *s, const struct sockaddr_in *from, const uint8_t *d, size_t n, uint64_t t) {
  size_t used;
  static __thread uint32_t luck = 521288629u;
  if (kind == PLAIN) return walk(s, d + DATA_HEADER, n - DATA_HEADER, t, &used);
  if (n < DATA_HEADER || (d[0] != 0 && d[0] != 2) || is_unlucky(sink_loss_ppm, &luck)) return 0;
  struct heard *h = heard_session(s, from, d);
  unsigned long found = 0;
  if (d[0]) {
    if ((int32_t)(get32(d + 12) + 1 - h->next) > 0) hears_up_to(s, h, get32(d + 12) + 1);
  } else {
    uint32_t sqn = get32(d + 8);
    if ((int32_t)(sqn - h->next) >= 0) hears_up_to(s, h, sqn + 1);
    uint64_t *word = &h->has[sqn % SLOTS / 64], bit = 1ull << sqn % 64;
    if ((int32_t)(sqn - h->low) < 0 || *word & bit) atomic_fetch_add(&s->duplicates, 1);
    else *word |= bit, found = walk(s, d + DATA_HEADER, n - DATA_HEADER, t, &used);
  }
  while (h->low != h->next && has(h, h->low)) h->low++;
  if (h->low == h->next) h->nak_at = 0;
  else if (!h->nak_at) h->nak_at = t + 20000000;
  return found;
}
static void ask(Sink *s, uint64_t t) { /* NAKs that are due */
  uint8_t nak[12 + 4 * 340];
  for (int i = 0; i < s->n_heard; i++) {
    struct heard *h = &s->heard[i];
    if (!h->nak_at || t < h->nak_at) continue;
    int n = 0;
    for (uint32_t sqn = h->low; sqn != h->next && n < 340; sqn++)
      if (!has(h, sqn)) put32(nak + 12 + 4 * n++, sqn);
    nak[0] = 3, nak[1] = 0;
    put16(nak + 2, ntohs(h->to.sin_port)), put32(nak + 4, h->id), put16(nak + 8, n), put16(nak + 10, 0);
    sendto(s->nak_fd, nak, 12 + 4 * n, 0, (void *)&h->to, sizeof h->to);
    atomic_fetch_add(&s->naks, n);
    h->nak_at = t + 100000000;
  }
}
static unsigned long on_nats(Sink *s, int fd, const uint8_t *p, size_t n, uint64_t t, size_t *used) {
  unsigned long found = 0;
  size_t at = 0;
  for (;;) {
    const uint8_t *end = memchr(p + at, '\n', n - at);
    if (!end) break;
    size_t line = end - (p + at) + 1;
    if (p[at] == 'M') {
      const uint8_t *digits = end;
      while (*--digits != ' ');
      size_t length = atoi((const char *)digits + 1);
      if (at + line + length + 2 > n) break;
      if (length >= 12) look(s, p + at + line, t);
      found++, line += length + 2;
    } else if (p[at] == 'P' && p[at + 1] == 'I') write_all(fd, "PONG\r\n", 6);
    at += line;
  }
  *used = at;
  return found;
}
static void *sink(void *own) {
  Sink *s = own;
  char name[16];
  snprintf(name, sizeof name, "sink%d", (int)(s - sinks));
  prctl(PR_SET_NAME, name);
  int is_stream = kind == TCP || kind == NATS, per = is_stream ? 1 << 20 : DATAGRAM_MAX + 64;
  uint8_t *area = room_for(is_stream ? s->n : BURST, per);
  size_t *have = room_for(s->n + 1, sizeof *have);
  struct mmsghdr in[BURST];
  struct iovec iov[BURST];
  struct sockaddr_in from[BURST];
  memset(in, 0, sizeof in);
  for (int i = 0; !is_stream && i < BURST; i++) {
    iov[i] = (struct iovec){area + (size_t)i * per, per};
    in[i].msg_hdr.msg_iov = &iov[i], in[i].msg_hdr.msg_iovlen = 1, in[i].msg_hdr.msg_name = &from[i];
  }
  for (;;) {
    struct epoll_event events[64];
    int n = epoll_wait(s->ep, events, 64, 10);
    uint64_t t = now_ns();
    for (int e = 0; e < n; e++) {
      int at = events[e].data.u32, fd = s->fds[at];
      unsigned long found = 0;
      if (is_stream) {
        uint8_t *b = area + (size_t)at * per;
        size_t used;
        ssize_t k = recv(fd, b + have[at], per - have[at], MSG_DONTWAIT);
        if (k <= 0) {
          if (k < 0 && (errno == EAGAIN || errno == EINTR)) continue;
          epoll_ctl(s->ep, EPOLL_CTL_DEL, fd, 0);
          atomic_fetch_add(&s->gone, 1);
          continue;
        }
        have[at] += k, t = now_ns();
        found = kind == NATS ? on_nats(s, fd, b, have[at], t, &used) : walk(s, b, have[at], t, &used);
        memmove(b, b + used, have[at] -= used);
      } else {
        for (int i = 0; i < BURST; i++) in[i].msg_hdr.msg_namelen = sizeof from[i];
        int k = recvmmsg(fd, in, BURST, MSG_DONTWAIT, 0);
        t = now_ns();
        for (int i = 0; i < k; i++) found += on_datagram(s, &from[i], iov[i].iov_base, in[i].msg_len, t);
      }
      if (found) arrived(s, found);
    }
    if (kind == LBTRM) ask(s, t);
  }
  return 0;
}
static void join(Sink *s, const char *group, int port) {
  struct sockaddr_in a = address(group, port);
  struct ip_mreq m = {a.sin_addr, {htonl(INADDR_LOOPBACK)}};
  int fd = udp_socket();
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
  if (bind(fd, (void *)&a, sizeof a) || setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof m)) die("join");
  s->fds[s->n++] = fd;
}
static void connect_sink(Sink *s, const char *ip, int port, uint32_t id) {
  int fd = connected(address(ip, port));
  uint8_t hello[12] = {8, 0x6b, 0, 12, 0xff, 8};
  put32(hello + 8, id);
  const char *nats = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB t 1\r\n";
  if (kind == NATS ? write_all(fd, nats, strlen(nats)) : id && write_all(fd, hello, sizeof hello)) die("hello");
  s->fds[s->n++] = fd;
}

static void report(void) {
  printf("{\"sent\":%lu,\"written_off\":%lu,\"omitted\":%lu,\"repaired\":%lu,", sent, written_off, omitted, repaired);
  printf("\"latency_us\":{\"p50\":%.1f,\"p99\":%.1f,\"p99.9\":%.1f},", latency_us(.5), latency_us(.99), latency_us(.999));
  printf("\"sinks\":[");
  for (int i = 0; i < n_sinks; i++)
    printf("%s{\"received\":%lu,\"duplicates\":%lu,\"naks\":%lu,\"gone\":%lu,\"topics\":%lu}", i ? "," : "",
           sinks[i].received, sinks[i].duplicates, sinks[i].naks, sinks[i].gone, sinks[i].topics);
  printf("]}\n");
}
static void set(const char *key, const char *value) {
  static const char *kinds[] = {"lbtrm", "tcp", "nats", "plain"};
  if (!strcmp(key, "kind")) {
    for (kind = PLAIN; kind > LBTRM && strcmp(value, kinds[kind]); kind--);
  }
  else if (!strcmp(key, "size") && n_sizes < MAX_SIZES) sizes[n_sizes++] = atoi(value);
  else if (!strcmp(key, "trains")) trains = atoi(value);
  else if (!strcmp(key, "packed")) packed = atoi(value);
  else if (!strcmp(key, "in_order")) in_order = atoi(value);
  else if (!strcmp(key, "large_permille")) large_permille = atoi(value);
  else if (!strcmp(key, "large_bytes")) large_bytes = atoi(value);
  else if (!strcmp(key, "window")) window = atol(value);
  else if (!strcmp(key, "rate")) rate = atol(value);
  else if (!strcmp(key, "loss")) loss_ppm = atol(value);
  else if (!strcmp(key, "sinkloss")) sink_loss_ppm = atol(value);
  else errno = EINVAL, die(key);
}
static void start(void) {
  pthread_t thread;
  for (int i = 0; i < n_sinks; i++) {
    Sink *s = &sinks[i];
    s->ep = epoll_create1(0), s->seen = room_for(n_topics + 1, 4);
    s->nak_fd = udp_socket();
    if (kind == LBTRM) s->heard = room_for(MAX_SESSIONS, sizeof *s->heard);
    for (int k = 0; k < s->n; k++) watch(s->ep, s->fds[k], k);
    pthread_create(&thread, 0, sink, s);
  }
  pthread_create(&thread, 0, source, 0);
}
int main(void) {
  static char line[512], a[64], b[64];
  topics = room_for(MAX_TOPICS, sizeof *topics);
  setvbuf(stdout, 0, _IOLBF, 0);
  while (fgets(line, sizeof line, stdin)) {
    int port, dport, number;
    unsigned id;
    long n;
    if (sscanf(line, "set %63s %63s", a, b) == 2) set(a, b);
    else if (sscanf(line, "session %63s %d %u %63s %d", a, &port, &id, b, &dport) == 5 && n_sessions < MAX_SESSIONS) {
      Session *s = sessions[n_sessions++] = room_for(1, sizeof *s);
      s->own = address(a, port), s->to = address(b, dport), s->id = id;
      s->pending = room_for(1, STREAM);
    } else if (sscanf(line, "topic %d %u", &number, &id) == 2 && n_topics < MAX_TOPICS)
      topics[n_topics++] = (Topic){number, id, 0};
    else if (!strcmp(line, "open\n")) open_source();
    else if (!strcmp(line, "sink\n") && n_sinks < MAX_SINKS) n_sinks++;
    else if (sscanf(line, "join %63s %d", a, &port) == 2 && n_sinks) join(&sinks[n_sinks - 1], a, port);
    else if (sscanf(line, "connect %63s %d %u", a, &port, &id) == 3 && n_sinks)
      connect_sink(&sinks[n_sinks - 1], a, port, id);
    else if (!strcmp(line, "start\n")) start();
    else if (!strncmp(line, "resume", 6)) {
      atomic_store(&left, sscanf(line, "resume %ld", &n) == 1 ? n : -1);
      atomic_store(&has_paused, 0);
      atomic_store(&is_paused, 0);
    } else if (!strcmp(line, "pause\n")) { /* until the last burst has been counted */
      for (atomic_store(&is_paused, 1); !atomic_load(&has_paused); usleep(1000));
    }
    else if (!strcmp(line, "reset\n")) memset(latencies, 0, sizeof latencies);
    else if (!strcmp(line, "mark\n")) {
      for (int i = 0; i < n_sinks; i++) sinks[i].topics = 0;
      epoch++;
    } else if (!strcmp(line, "report\n")) {
      report();
      continue;
    } else errno = EINVAL, die(line);
    puts("ok");
  }
  return 0;
}
