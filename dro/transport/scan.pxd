cimport cython

from dro.transport.runs cimport RunTable, read_messages, u32

cdef unsigned int _MESSAGE, _HEADER_BYTES

cdef class DatagramHeader:
    cdef public Py_ssize_t size, key_at, sqn_at, trail_at, mark_at, mark_bytes
    cdef public unsigned int mark_mask, mark

cdef class Stream:
    cdef public unsigned long long key, sender, only_from
    cdef public long long expected
    cdef public unsigned int first, trail
    cdef public Py_ssize_t datagrams, nbytes, messages
    cdef public bint is_touched
    cdef public RunTable table

@cython.locals(count=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, key="unsigned long long", sqn="unsigned int",
               trail="unsigned int", mark="unsigned int", size=Py_ssize_t, key_at=Py_ssize_t, sqn_at=Py_ssize_t,
               trail_at=Py_ssize_t, mark_at=Py_ssize_t, mark_bytes=Py_ssize_t, mask="unsigned int", plain="unsigned int",
               least=Py_ssize_t,
               begin=Py_ssize_t, kind="unsigned int", head="unsigned int",
               message="unsigned int", topic_index="unsigned int", topic_sqn="unsigned int",
               sender="unsigned long long", stream=Stream, table=RunTable, rows=Py_ssize_t)
cpdef Py_ssize_t scan_datagrams(
    const unsigned char[::1] view, list offsets, list lengths, list senders, Py_ssize_t at, dict streams, list touched,
    DatagramHeader header
) except -1
@cython.locals(kind="unsigned int", head="unsigned int", length=Py_ssize_t, messages=Py_ssize_t, rows=Py_ssize_t)
cpdef tuple scan_stream(const unsigned char[::1] view, Py_ssize_t pos, Py_ssize_t end, RunTable table)
