cdef class ForwardEntry:
    cdef public object plain, source, _egress
    cdef public dict closing
    cdef public unsigned int handle
