cimport cython

cdef unsigned long long _MASK, _A, _B, _C, _D, _E, _F, _G

cdef class KeptRow:
    cdef unsigned long long[::1] _cells
    cdef public Py_ssize_t _at
    cdef public unsigned long long _low, _number
    cdef public object former

    @cython.locals(cells="unsigned long long[::1]", number="unsigned long long", at=Py_ssize_t)
    cpdef object write(
        self, unsigned long long a, unsigned long long b=*, unsigned long long c=*, unsigned long long d=*
    )

@cython.locals(word="unsigned long long")
cpdef unsigned long long check_word(
    unsigned long long low, unsigned long long number, unsigned long long a, unsigned long long b,
    unsigned long long c, unsigned long long d
) except? 0
