cimport cython

cdef unsigned int _FLAGS, _MASK

@cython.locals(view="unsigned char[::1]", at=Py_ssize_t)
cpdef object write_headers(
    bytearray buffer, object offsets, unsigned long long key, unsigned int sqn, unsigned int trail, unsigned int tgsz,
    unsigned int symbols
)
cdef object _write_u32(unsigned char[::1] view, Py_ssize_t at, unsigned int value)
