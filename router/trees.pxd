cimport cython

cdef long long _FAR
cdef int _NONE, _SEVERAL

cdef class Trees:
    cdef public list ids
    cdef public dict numbers, edges
    cdef public object distances
    cdef int[::1] _out_at, _out_to, _in_at, _in_from, _nodes, _order, _branch
    cdef long long[::1] _out_weights, _in_weights, _keys
    cdef public Py_ssize_t reached
    cdef Py_ssize_t _waiting

    @cython.locals(distances="long long[::1]", order="int[::1]", at="int[::1]", sources="int[::1]",
                   weights="long long[::1]", node=int, source=int, distance="long long", further="long long",
                   edge=Py_ssize_t)
    cpdef object search(self, int root)
    @cython.locals(keys="long long[::1]", nodes="int[::1]", place=Py_ssize_t)
    cdef object _push(self, long long key, int node)
    @cython.locals(keys="long long[::1]", nodes="int[::1]", place=Py_ssize_t, below=Py_ssize_t, count=Py_ssize_t,
                   key="long long", last=int, node=int)
    cdef int _pop(self) except -1
    @cython.locals(distances="long long[::1]", at="int[::1]", onward="int[::1]", edge=Py_ssize_t)
    cpdef tuple onward(self, int node, bint is_shared)
    @cython.locals(distances="long long[::1]", order="int[::1]", branch="int[::1]", at="int[::1]", onward="int[::1]",
                   weights="long long[::1]", place=Py_ssize_t, node=int, first=int, way=int, ties=int, edge=Py_ssize_t)
    cpdef dict branches(self, int me, bint is_shared, list behind)
    cpdef dict _ways(self, int node, int me, dict several)
    @cython.locals(source=int, to=int, before="long long", now="long long")
    cpdef bint is_touched(self, long long[::1] distances, list changes) except -1
