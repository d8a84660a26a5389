from dro.transport.datagrams.receiver cimport SessionSocket

cdef class LbtrmGroup(SessionSocket):
    cdef public object group, port, _nak_socket, _on_stranger
