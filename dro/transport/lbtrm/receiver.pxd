from dro.transport.mmsg cimport DatagramBatch
from dro.transport.session cimport DataReader

cdef class LbtrmGroup(DataReader):
    cdef public object group, port, stats, _loop, _clock, _nak_socket, _on_empty, _on_stranger, _socket, _kept, _kept_name
    cdef public DatagramBatch _batch
    cdef public dict _sessions, _streams, _due, _moved
    cdef public list _touched

    cpdef object _on_batch(self, object now_ns)
