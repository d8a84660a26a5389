from dro cimport system_calls
from dro.bus.descriptors cimport DescriptorReader

cdef class Intake:
    cdef public object _egress
    cdef public object _addressed
    cdef public dict _addressed_queues, _queues, _introduced, _polled, _leaving, _waits, _places, _taken, _again, _older
    cdef public object _rows, _turn, _turn_row, _page, _on_read, _me
    cdef public set _can_deliver

    cpdef bint take(self) except -1
    cpdef bint _take(self, object worker, DescriptorReader queue, Py_ssize_t most) except -1
    cpdef bint before_sleep(self) except -1
    cpdef object after_sleep(self)
