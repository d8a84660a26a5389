cdef class MonotonicClock:
    cpdef object now_ns(self)
