cimport cython

cdef Py_ssize_t _HEAD_BYTES
cdef object _pack_into, _unpack_from

cdef class SharedLog:
    cdef public object path, _fd, _area, _mv, _turn, _row
    cdef public unsigned long long _capacity, _extent, _begin, _end, _last, _first, _after, _mark, _next
    cdef public Py_ssize_t _newest_bytes
    cdef unsigned int[::1] _cells
    cdef unsigned long long[::1] _words

    cpdef object newest(self)
    @cython.locals(nbytes=Py_ssize_t, begin=Py_ssize_t)
    cpdef bint append(
        self, unsigned long long first, Py_ssize_t count, Py_ssize_t size, unsigned int payload, object data,
        unsigned long long after
    ) except -1
    cpdef bint append_mixed(
        self, unsigned long long first, object ends, object payloads, object data, unsigned long long after
    ) except -1
    @cython.locals(begin=Py_ssize_t)
    cpdef object reserve(self, Py_ssize_t nbytes, Py_ssize_t count)
    @cython.locals(count=Py_ssize_t, nbytes=Py_ssize_t, paid="unsigned int", behind=Py_ssize_t, table=Py_ssize_t,
                   cell=Py_ssize_t, number=Py_ssize_t, cells="unsigned int[::1]")
    cpdef object commit_mixed(
        self, unsigned long long first, object ends, object payloads, unsigned long long after
    )
    @cython.locals(capacity="unsigned long long", at="unsigned long long", offset="unsigned long long")
    cpdef bint _find_room(self, unsigned long long nbytes) except -1
    @cython.locals(at="unsigned long long", is_first=bint, words="unsigned long long[::1]", cells="unsigned int[::1]",
                   begin=Py_ssize_t, word=Py_ssize_t, cell=Py_ssize_t)
    cpdef object _commit(
        self, unsigned long long first, unsigned int count, unsigned int size, unsigned int payload, Py_ssize_t data,
        Py_ssize_t nbytes, unsigned long long after
    )
    cpdef object _write_row(self)
    @cython.locals(begin="unsigned long long")
    cpdef object _make_room(self, unsigned long long end)
    @cython.locals(capacity="unsigned long long", nbytes="unsigned long long", last="unsigned long long",
                   front="unsigned long long", cells="unsigned int[::1]")
    cpdef unsigned long long _following(self, unsigned long long at) except? 0
    cpdef object cut(self, Py_ssize_t count, unsigned long long after)
