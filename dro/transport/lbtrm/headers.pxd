cimport cython

from dro.transport.runs cimport write_u32

cdef unsigned int _FLAGS, _MASK

@cython.locals(view="unsigned char[::1]", at=Py_ssize_t)
cpdef object write_headers(
    object buffer, object offsets, unsigned long long key, unsigned int sqn, unsigned int trail, unsigned int tgsz,
    unsigned int symbols
)
