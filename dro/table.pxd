cimport cython

cdef class Table:
    cdef public list _parts
    cdef public Py_ssize_t _count, _mask

    @cython.locals(h=Py_hash_t)
    cdef dict _part(self, object key)
    cpdef object _split(self)
