cimport cython

cdef Py_ssize_t _HEAD_BYTES
cdef object _pack_into, _unpack_from

cdef class SharedLog:
    cdef public object path, _fd, _area, _mv, _turn, _row
    cdef public unsigned long long _capacity, _extent, _begin, _end, _last, _first, _after, _mark

    cpdef bint append(
        self, unsigned long long first, Py_ssize_t count, Py_ssize_t size, Py_ssize_t payload, object data,
        unsigned long long after
    ) except -1
    cpdef bint append_mixed(
        self, unsigned long long first, object ends, object payloads, object data, unsigned long long after
    ) except -1
    @cython.locals(nbytes="unsigned long long", at="unsigned long long", offset="unsigned long long",
                   end="unsigned long long", start=Py_ssize_t, stop=Py_ssize_t)
    cpdef bint _append(
        self, unsigned long long first, Py_ssize_t count, Py_ssize_t size, Py_ssize_t payload, bytes table, object data,
        unsigned long long after
    ) except -1
    @cython.locals(begin="unsigned long long")
    cpdef object _make_room(self, unsigned long long end)
    cpdef object cut(self, Py_ssize_t count, unsigned long long after)
