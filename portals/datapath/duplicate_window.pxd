cdef class DuplicateWindow:
    # Python's numbers: they are shifted by more than 64 bits
    cdef public object _increment, _now_ns, _size, _stray_newest, _stray_next, _stray_since_ns, _taken_apart
    cdef public object _missing, too_old
    cdef public long long next_sqn, _newest, _top
    cdef public list _lost
    cdef public bint has_restarted, has_jumped

    cpdef object advance(self, long long count)
