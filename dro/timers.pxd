cdef class Timer:
    cdef public object callback, when_ns, _heap

    cpdef object cancel(self)

cdef class TimerHeap:
    cdef public list _heap
    cdef public Py_ssize_t _serial, _dead

    cpdef Timer call_at(self, object when_ns, object callback)
    cpdef object on_cancel(self)
    cpdef object next_deadline(self)
    cpdef Py_ssize_t run_due(self, object now_ns) except -1
