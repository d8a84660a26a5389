cdef class CounterPage:
    cdef public object path, slots, _area, _whole, _cells
    cdef public Py_ssize_t general_slots, pair_blocks, pair_slots

    cpdef Py_ssize_t pair(self, Py_ssize_t worker) except -1
    cpdef object add(self, Py_ssize_t slot, object count=*)
    cpdef object add_sized(self, Py_ssize_t slot, object count, object nbytes)
