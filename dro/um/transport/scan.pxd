cimport cython

from dro.um.transport.runs cimport RunTable, read_messages

cdef unsigned int _LEAST, _DATA_HEADER, _RX, _MESSAGE

cdef unsigned int _u32(const unsigned char[::1] view, Py_ssize_t at) except? 0

cdef class Stream:
    cdef public unsigned long long key, sender
    cdef public long long expected
    cdef public unsigned int first, trail
    cdef public Py_ssize_t datagrams, nbytes, messages
    cdef public bint is_touched
    cdef public RunTable table

@cython.locals(count=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, key="unsigned long long", sqn="unsigned int",
               trail="unsigned int", flags="unsigned int", kind="unsigned int", head="unsigned int",
               message="unsigned int", topic_index="unsigned int", topic_sqn="unsigned int",
               sender="unsigned long long", stream=Stream, table=RunTable, rows=Py_ssize_t)
cpdef Py_ssize_t scan_datagrams(
    const unsigned char[::1] view, list offsets, list lengths, list senders, Py_ssize_t at, dict streams, list touched
) except -1
