cimport cython

cdef unsigned long long _MASK

cdef class CounterPage:
    cdef public object path, slots, _area, _whole, _cells, _general
    cdef public list _copies
    cdef unsigned long long[::1] _written
    cdef public long long _counted
    cdef public Py_ssize_t general_slots, pair_blocks, pair_slots

    @cython.locals(counted="long long")
    cpdef long long publish(self) except? -1
    cpdef Py_ssize_t pair(self, Py_ssize_t worker) except -1
    @cython.locals(slots="unsigned long long[::1]")
    cpdef object add(self, Py_ssize_t slot, long long count=*)
    @cython.locals(slots="unsigned long long[::1]")
    cpdef object add_sized(self, Py_ssize_t slot, long long count, long long nbytes)

cdef class Histogram:
    cdef public CounterPage _page
    cdef public Py_ssize_t _slot
    cdef public tuple _bounds

    @cython.locals(at=Py_ssize_t, slot=Py_ssize_t, bound="long long", page=CounterPage)
    cpdef observe(self, long long value, long long count=*)
