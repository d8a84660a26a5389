/* The source of the load generator: what a UM source writes, and its answers to NAKs. Part of `load.c`. */
typedef struct {
  struct sockaddr_in own, to;
  uint32_t id, sqn, sm_sqn;
  int fd, n_clients, clients[MAX_CLIENTS], has_sent;
  uint8_t *pending;
  size_t length;
  uint64_t since; /* when the oldest of what is pending was added */
  uint64_t at[SLOTS]; /* by sqn: where the datagram lies in the ring ... */
  uint32_t size[SLOTS]; /* ... and its size */
} Session;
typedef struct {
  int session;
  uint32_t index, sqn;
  uint64_t sent_ns; /* its newest message */
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
    if (!s->length) s->since = t;
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
  if (length >= STAMPS) memcpy(p, &t, 8), memcpy(p + 8, &number, 4), memcpy(p + 12, &topic->sent_ns, 8);
  topic->sent_ns = t;
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
      if (s->fd < 0) die("connect");
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
        if (due > r / 100 + 100) began += (uint64_t)((due - 1) * 1e9 / r), due = 1; /* the machine paused: no backlog */
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
    int is_free = r && !was_paused && w - (long)(s - c) > 0 && may; /* the next message is only not due yet */
    for (int i = 0; i < n_sessions; i++)
      if (!packed || !is_free || t - sessions[i]->since >= BATCHING_NS) flush(sessions[i]);
    send_out();
    if (was_paused) atomic_store(&has_paused, 1);
    if (t - moved > 10000000 && t - told > 200000000) tell_where(), told = t;
    if (!was_paused && w - (long)(s - c) <= 0 && t - moved > 1500000000) { /* lost for good: go on without */
      atomic_fetch_add(&written_off, s - c);
      moved = t;
    }
    if (is_free) {
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
