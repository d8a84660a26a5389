cimport cython

from dro.transport.runs cimport RunTable
from portals.datapath.duplicate_window cimport DuplicateWindow
from portals.datapath.outgoing cimport Lane, ProxySource

cdef unsigned int _IRREGULAR
cdef Py_ssize_t _WORDS, _SQN, _FRAGMENTS, _LENGTH, _SHAPE

@cython.locals(words="unsigned int[::1]", at=Py_ssize_t, row=Py_ssize_t, handle="unsigned int", length="unsigned int",
               shape="unsigned int", proxy=ProxySource, window=DuplicateWindow, lane=Lane)
cpdef list plan(RunTable table, dict feeds, list lanes)
