cimport cython

from dro cimport system_calls
from dro.timers cimport TimerHeap

cdef long long _MUCH

cdef class Loop:
    cdef public object after_turn, clock, _epoll, _soon, _wake, _thread, _running, _closed, _slices
    cdef public dict _readers, _writers, _again, _late, _ending, _settling
    cdef public list _pollers
    cdef public TimerHeap _timers
    cdef public bint _polls_first, _is_late
    cdef public long long poll_ns, rest_below_ns, longest_turn_ns, longest_turn_cpu_ns, _rest_ns, _cpu_ns
    cdef public long long io_events, timer_events, queued_calls

    cpdef object now_ns(self)
    cpdef object next_deadline(self)
    @cython.locals(began_ns="long long", slept_ns="long long", cost_ns="long long", timers="long long", counted="long long", worked=bint, is_full=bint, has_late=bint,
                   polls_first=bint)
    cpdef bint run_once(self, object timeout_ns=*) except -1
    cpdef bint _is_full(self, long long began_ns) except -1
    @cython.locals(turn_ns="long long", cpu_ns="long long", cost_ns="long long")
    cpdef long long _measure(self, long long began_ns) except -1
    cpdef list _wait(self, object wait_ns)
    @cython.locals(worked=bint)
    cpdef bint _take_polled(self) except -1
    cpdef bint _run_slices(self) except -1
    cpdef bint _run_calls(self) except -1
