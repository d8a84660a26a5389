cimport cython

from dro.transport.runs cimport RunTable, write_u32

cdef Py_ssize_t _WORDS, _SQN, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE
cdef unsigned int _DATA_BELOW, _HEADER, _TRAIN_BYTES

@cython.locals(cells="unsigned int[::1]", view="unsigned char[::1]", row=Py_ssize_t, nth=Py_ssize_t, at=Py_ssize_t, shape="unsigned int",
               offset="unsigned int", stride="unsigned int")
cpdef object write_topics(bytearray buffer, RunTable table)
@cython.locals(words="unsigned int[::1]", row=Py_ssize_t, nth=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t,
               is_data=bint, size=Py_ssize_t, held=Py_ssize_t, payload=Py_ssize_t, sizes=list, others=dict,
               fragments=list, payloads=list, source="const unsigned char[::1]", out="unsigned char[::1]", to=Py_ssize_t,
               topic="unsigned int")
cpdef object lay_out(bytearray buffer, RunTable table, Py_ssize_t header, Py_ssize_t most, object reserve=*)
@cython.locals(words="unsigned int[::1]", row=Py_ssize_t, nth=Py_ssize_t, offset=Py_ssize_t, length=Py_ssize_t, end=Py_ssize_t,
               pieces=list, ends=list)
cpdef tuple in_stream(object buffer, RunTable table)
@cython.locals(at=Py_ssize_t, end=Py_ssize_t, number=Py_ssize_t, count=Py_ssize_t, size=Py_ssize_t, many=Py_ssize_t,
               first=Py_ssize_t)
cpdef list trains_of(list sizes, Py_ssize_t segment_max, Py_ssize_t train_max)
