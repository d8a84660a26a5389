cimport cython

from dro cimport system_calls
from dro.shared_memory.ring cimport RingReader, RingWriter

cdef class DescriptorWriter:
    cdef public RingWriter _ring
    cdef unsigned long long[::1] _cells
    cdef public dict _heads, _expired
    cdef public Py_ssize_t _head, _done, _slots_at, _slots

    @cython.locals(cell=Py_ssize_t, slots=Py_ssize_t, at=Py_ssize_t, head="unsigned long long",
                   done="unsigned long long")
    cpdef bint put(self, Py_ssize_t reader, object slot) except -1
    @cython.locals(at=Py_ssize_t)
    cpdef bint must_wake(self, Py_ssize_t reader) except -1

cdef class DescriptorReader:
    cdef public RingReader ring
    cdef unsigned long long[::1] _cells
    cdef public long long taken
    cdef public Py_ssize_t _head, _begun, _tail, _done, _slots_at, _slots

    cpdef bint has_more(self) except -1
    @cython.locals(tail="long long", at=Py_ssize_t)
    cpdef object take(self)
    cpdef object finish(self)
    cpdef object ask_for_wake_up(self)
    cpdef object stay_awake(self)

cdef Py_ssize_t _SLEEPS, _CELLS, _QUEUES, _SLOT_BYTES
cdef object _pack_into, _unpack_from, _new
