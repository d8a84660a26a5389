cdef class RateLimiter:
    cdef public bint is_unlimited
    cdef public long long quota, credit, _interval_ns, _next_ns
    cdef public dict _line

    cpdef object _refresh(self, long long now_ns)
    cpdef object take_run(self, object count, object size, long long now_ns, object holder=*)
    cpdef object take_sizes(self, object sizes, long long now_ns, object holder=*)
