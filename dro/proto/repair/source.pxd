from dro.proto.repair.retransmit cimport Retransmitter, TransmissionWindow

cdef class SourceSession:
    cdef public object stats, next_sqn, trail, next_sm_sqn, _cfg, _sm, _last_data_ns
    cdef public TransmissionWindow _window
    cdef public Retransmitter _retransmitter

    cpdef object on_sent_run(self, object count, object payload_bytes_each, object ref, object now_ns)
    cpdef object on_sent_mixed(self, object ends, object payloads, object buffer, object now_ns)
    cpdef object _on_sent(self, object count, object nbytes, object now_ns)
    cpdef object leave_logged(self, object first_sqn, bint is_all_logged)
    cpdef object next_deadline(self)
