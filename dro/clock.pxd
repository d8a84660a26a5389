from dro cimport system_calls

cdef class MonotonicClock:
    cpdef object now_ns(self)
