cimport cython

cdef class TransmissionWindow:
    cdef public long long next_index, trail_index, payload_bytes, memory_bytes, _adopted_to, _logged_to
    cdef public object _size_bytes, _limit_bytes
    cdef public Py_ssize_t _head, _arena_used
    cdef public list _starts, _runs
    cdef public bytearray _arena
    cdef public object _arena_run, _find_adopted

    @cython.locals(length="long long", memory_bytes="long long", nbytes="long long")
    cpdef object append(self, long long count, long long payload_bytes, object chunk)
    cpdef object append_mixed(self, object ends, object payloads, object buffer)
    @cython.locals(offset=Py_ssize_t, stride=Py_ssize_t, length=Py_ssize_t, nbytes=Py_ssize_t, at=Py_ssize_t,
                   i=Py_ssize_t, source=Py_ssize_t, arena=bytearray)
    cpdef object _append_copy(self, Py_ssize_t count, long long payload_bytes, object chunk)
    cpdef object leave_logged(self, long long index, bint is_all_logged)
    cpdef object _trim(self)
    cpdef object _oldest(self)
    cpdef object _leave(self, object run, long long leaving)

cdef class Retransmitter:
    cdef public TransmissionWindow _window
    cdef public object _limiter, _data_limiter, _ignore_ns, _queue_limit, _max_ncfs, stats, _recent
    cdef public object _queue, _queued, _queue_bytes, wake_ns
