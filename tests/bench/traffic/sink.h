/* The sinks of the load generator: what has arrived, once each, and NAKs for what is missing. Part of `load.c`. */
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
      found += length < STAMPS || look(s, p + at + line, 0, t);
      line += length + 2;
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
  uint8_t *area = room_for(is_stream ? MAX_SESSIONS : BURST, per);
  size_t *have = room_for(MAX_SESSIONS, sizeof *have);
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
static int connect_sink(Sink *s, const char *ip, int port, uint32_t id) { /* 0: nobody listens there any more */
  int fd = connected(address(ip, port));
  if (fd < 0 && !s->ep) die("connect");
  if (fd < 0 || s->n == MAX_SESSIONS) return 0;
  uint8_t hello[12] = {8, 0x6b, 0, 12, 0xff, 8};
  put32(hello + 8, id);
  const char *nats = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB t 1\r\n";
  if (kind == NATS ? write_all(fd, nats, strlen(nats)) : id && write_all(fd, hello, sizeof hello)) die("hello");
  s->fds[s->n++] = fd;
  if (s->ep) watch(s->ep, fd, s->n - 1);
  return 1;
}
