cimport cython

cdef class Trains:
    cdef public object sent, busy, on_error, _socket, _sends, _to
    cdef public bint is_behind
    cdef public Py_ssize_t _segment_max, _train_max

    @cython.locals(sent=Py_ssize_t, per_train=Py_ssize_t, train=Py_ssize_t, start=Py_ssize_t)
    cpdef object send_equal(self, object view, Py_ssize_t at, Py_ssize_t count, Py_ssize_t size)
    cpdef object send_sizes(self, object buffer, list sizes, list ends)
