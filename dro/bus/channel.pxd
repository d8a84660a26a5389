cdef class Channels:
    cdef public object ctl_address, on_ctl, on_stuck, stale, malformed, _loop, _context, _held_ctl, _ctl_in
    cdef public bytes _envelope
    cdef public dict _peers, _newest
    cdef public bint _closed
    cdef public int _bell

    cpdef object wake(self, object worker)
    cpdef object _receive_ctl(self, bytes frame)
    cpdef object _receive_held_ctl(self)
