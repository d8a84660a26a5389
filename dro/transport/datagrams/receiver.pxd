from dro.transport.mmsg cimport DatagramBatch
from dro.transport.session cimport DataReader

cdef class SessionSocket(DataReader):
    cdef public object stats, _header, _loop, _clock, _label, _row_kind, _on_empty, _socket, _kept, _kept_name
    cdef public DatagramBatch _batch
    cdef public dict _sessions, _streams, _due, _moved
    cdef public list _touched

    cpdef object _on_batch(self, object now_ns)
