cdef class ReceiverSession:
    cdef public object expected, has_events, has_ended, stats, _cfg, _loss, _gaps, _events, _begun, active_ns
    cdef public object _timeout_ns, _suspect, _nak_stm, _nak_tx, _recoveries

    cpdef object on_run(self, object first, object count, object trail, object now_ns, object nbytes=*)
    cpdef object next_deadline(self)
