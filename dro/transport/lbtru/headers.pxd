cimport cython

from dro.transport.runs cimport write_u32

cdef unsigned int _MASK, _SID_NEXT, _SID_HEAD

@cython.locals(view="unsigned char[::1]", at=Py_ssize_t)
cpdef object write_headers(
    object buffer, object offsets, unsigned int session_id, unsigned int sqn, unsigned int trail
)
