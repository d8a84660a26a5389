cdef class RateLimiter:
    cdef public bint is_unlimited
    cdef public object quota, credit, _interval_ns, _next_ns
    cdef public dict _line

    cpdef object _refresh(self, object now_ns)
    cpdef object take_run(self, object count, object size, object now_ns, object holder=*)
    cpdef object take_sizes(self, object sizes, object now_ns, object holder=*)
