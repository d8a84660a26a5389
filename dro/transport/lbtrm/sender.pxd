from dro.transport.datagrams.sender cimport DatagramSender

cdef class LbtrmSender(DatagramSender):
    cdef public object _nak_port, _session_id, _tgsz, _symbol_mask

    cpdef object _write_headers(self, object buffer, object offsets)
