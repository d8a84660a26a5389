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
 *   connect IP PORT ID       it connects to this session (TCP, NATS); after `start` too, `refused` when it is gone
 *   start                    the threads begin, the source pauses
 *   resume, pause            the source; `resume N`: N messages at most
 *   reset                    latencies from here on
 *   mark                     topics of which something arrives that is sent from here on, and when the last of
 *                            those messages was sent that did not come before a later one of its topic
 *   report                   the counts, in JSON
 * End of input ends it. Build: gcc -O2 -pthread load.c */
#include "common.h"
#include "source.h"
#include "sink.h"

static void report(void) {
  printf("{\"sent\":%lu,\"written_off\":%lu,\"omitted\":%lu,\"repaired\":%lu,", sent, written_off, omitted, repaired);
  printf("\"latency_us\":{\"p50\":%.1f,\"p99\":%.1f,\"p99.9\":%.1f},", latency_us(.5), latency_us(.99), latency_us(.999));
  printf("\"sinks\":[");
  for (int i = 0; i < n_sinks; i++)
    printf("%s{\"received\":%lu,\"duplicates\":%lu,\"again\":%lu,\"naks\":%lu,\"gone\":%lu,\"topics\":%lu,\"lost_ns\":%lu}", i ? "," : "",
           sinks[i].received, sinks[i].duplicates, sinks[i].again, sinks[i].naks, sinks[i].gone, sinks[i].topics, sinks[i].lost_ns);
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
  else if (!strcmp(key, "books")) books = atoi(value);
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
    s->ep = epoll_create1(0), s->seen = room_for(n_topics + 1, 4), s->newest = room_for(n_topics + 1, 8);
    s->taken = room_for(n_topics + 1, sizeof *s->taken);
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
      topics[n_topics++] = (Topic){number, id, 0, 0};
    else if (!strcmp(line, "open\n")) open_source();
    else if (!strcmp(line, "sink\n") && n_sinks < MAX_SINKS) n_sinks++;
    else if (sscanf(line, "join %63s %d", a, &port) == 2 && n_sinks) join(&sinks[n_sinks - 1], a, port);
    else if (sscanf(line, "connect %63s %d %u", a, &port, &id) == 3 && n_sinks) {
      if (!connect_sink(&sinks[n_sinks - 1], a, port, id)) {
        puts("refused");
        continue;
      }
    } else if (!strcmp(line, "start\n")) start();
    else if (!strncmp(line, "resume", 6)) {
      atomic_store(&left, sscanf(line, "resume %ld", &n) == 1 ? n : -1);
      atomic_store(&has_paused, 0);
      atomic_store(&is_paused, 0);
    } else if (!strcmp(line, "pause\n")) { /* until the last burst has been counted */
      for (atomic_store(&is_paused, 1); !atomic_load(&has_paused); usleep(1000));
    }
    else if (!strcmp(line, "reset\n")) memset(latencies, 0, sizeof latencies);
    else if (!strcmp(line, "mark\n")) {
      for (int i = 0; i < n_sinks; i++) sinks[i].topics = sinks[i].lost_ns = 0;
      atomic_store(&mark_ns, now_ns());
      epoch++;
    } else if (!strcmp(line, "report\n")) {
      report();
      continue;
    } else errno = EINVAL, die(line);
    puts("ok");
  }
  return 0;
}
