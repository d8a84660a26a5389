from dro.kept.log cimport SharedLog
from dro.proto.repair.source cimport SourceSession
from dro.proto.ratelimit cimport RateLimiter
from dro.transport.trains cimport Trains
from dro.transport.runs cimport RunTable

cdef class DatagramSender:
    cdef public object address, transport_index, on_unblocked, send_errors, unsent, bad_packets
    cdef public SourceSession core
    cdef public SharedLog _log
    cdef public RateLimiter _limiter
    cdef public Trains _trains
    cdef public Py_ssize_t datagram_max_bytes, fragment_max_bytes, _header, _copies
    cdef public object _pack_bytes
    cdef public bint packs_all, _goes_on, _is_blocked, _is_closed, _is_full, _is_window
    cdef public object _headroom, _loop, _socket, _control_socket, _unread, _control_drops, _batch, _on_closed
    cdef public object _timer, _wake, _linger, _room, _kept, _forget
    cdef public unsigned long long _window_log_bytes

    cpdef object send_batch(self, bytearray buffer, RunTable table, object now_ns)
    cpdef object _send_run(self, bytearray buffer, RunTable table, object now_ns)
    cpdef object _send_datagrams(self, object datagrams, object now_ns)
    cpdef object _note_run(self, object data, object count, object size, object payload)
    cpdef object _note_mixed(self, object buffer, list ends, list payloads)
    cpdef object _reserve(self, Py_ssize_t nbytes, Py_ssize_t count)
    cpdef object _after_room(self, SharedLog log)
    cpdef object _admit(self, object count, object size, object now_ns)
    cpdef object _admit_sizes(self, list sizes, object now_ns)
    cpdef object _write_headers(self, object buffer, object offsets)
    cpdef object _after_send(self, bint is_busy, object now_ns)
    cpdef object _arm(self)
