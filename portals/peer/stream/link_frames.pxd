cimport cython

from dro.transport.runs cimport RunTable, u32, write_u32
from dro.transport.scan cimport Stream

cdef Py_ssize_t _WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE
cdef unsigned int _MESSAGE, _CODE, _DATA_BELOW
cdef Py_ssize_t _HEADER, _BLOCK_BYTES, _LEAST, _HEAD
cdef unsigned int _DATA_MARK

@cython.locals(kind="unsigned int", head="unsigned int", length=Py_ssize_t, begin=Py_ssize_t, messages=Py_ssize_t,
               topic_index="unsigned int", sqn="unsigned int", index="unsigned int")
cpdef tuple scan_link(unsigned char[::1] view, Py_ssize_t pos, Py_ssize_t end, RunTable table)
@cython.locals(cells="unsigned int[::1]", row=Py_ssize_t, nth=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, whole=Py_ssize_t,
               to=Py_ssize_t, size=Py_ssize_t, index="unsigned int", topic="unsigned int",
               source="const unsigned char[::1]", out="unsigned char[::1]", cuts=list, counts=list, others=dict, is_data=bint,
               number=Py_ssize_t)
cpdef tuple for_link(bytearray buffer, RunTable table, dict topics, Py_ssize_t held, Py_ssize_t most,
                     Py_ssize_t header=*)
@cython.locals(count=Py_ssize_t, table=RunTable, key="unsigned long long", expected="long long", offset=Py_ssize_t,
               length=Py_ssize_t, end=Py_ssize_t, pos=Py_ssize_t, messages=Py_ssize_t, mark="unsigned int",
               sqn="unsigned int", trail="unsigned int", found="unsigned long long")
cpdef tuple scan_packets(unsigned char[::1] view, list offsets, list lengths, Py_ssize_t at, Stream stream)
