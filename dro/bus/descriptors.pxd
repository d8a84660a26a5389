from dro.bus.ring cimport RingReader, RingWriter

cdef class DescriptorWriter:
    cdef public RingWriter _ring
    cdef public object _cells
    cdef public dict _heads
    cdef public Py_ssize_t _head, _done, _slots_at, _slots

    cpdef bint put(self, Py_ssize_t reader, object slot) except -1
    cpdef bint must_wake(self, Py_ssize_t reader) except -1

cdef class DescriptorReader:
    cdef public RingReader ring
    cdef public object taken, _cells
    cdef public Py_ssize_t _head, _tail, _done, _slots_at, _slots

    cpdef bint has_more(self) except -1
    cpdef object take(self)
    cpdef object finish(self)
    cpdef object ask_for_wake_up(self)
    cpdef object stay_awake(self)

cpdef object fence()
