cimport cython

cdef Py_ssize_t _WORDS, _SQN, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE
cdef unsigned int _MASK, _HEAD_SHIFT, _FLAGS_SHIFT, _DATA_BELOW

cdef class RunTable:
    cdef public object words
    cdef unsigned int[::1] cells
    cdef readonly Py_ssize_t capacity
    cdef public Py_ssize_t rows

    @cython.locals(words="unsigned int[::1]", at=Py_ssize_t, last=Py_ssize_t, count="unsigned int", shape="unsigned int",
                   distance="long long", fits=bint)
    cpdef object add(
        self, unsigned int topic_index, unsigned int sqn, unsigned int offset, unsigned int length,
        unsigned int headroom, unsigned int head, unsigned int flags=*
    )
    @cython.locals(words="unsigned int[::1]", at=Py_ssize_t, last=Py_ssize_t, count="unsigned int")
    cpdef object put(
        self, unsigned int topic_index, unsigned int sqn, unsigned int fragments, unsigned int offset,
        unsigned int length, unsigned int stride, unsigned int shape
    )
    @cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, row=Py_ssize_t, fragments="long long",
                   nbytes="long long")
    cpdef tuple total(self, Py_ssize_t first=*)
    @cython.locals(cells="unsigned int[::1]", at=Py_ssize_t, row=Py_ssize_t, most="unsigned int")
    cpdef bint has_other_than_data(self) except -1

cpdef unsigned int u32(const unsigned char[::1] view, Py_ssize_t at) except? 0
cpdef object write_u32(unsigned char[::1] view, Py_ssize_t at, unsigned int value)

@cython.locals(messages=Py_ssize_t, kind="unsigned int", length="unsigned int", head="unsigned int")
cpdef Py_ssize_t read_messages(
    const unsigned char[::1] view, Py_ssize_t pos, Py_ssize_t end, unsigned int headroom, RunTable out,
    unsigned int flags=*
) except -1
