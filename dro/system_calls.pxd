# The same functions for the compiled steps, which cimport them: this module itself is not compiled.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.errno cimport errno
from libc.string cimport memcpy

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/socket.h>
    #include <time.h>
    static inline long long dro_clock(int clock) {
        struct timespec now;
        clock_gettime(clock, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static inline int dro_receive(int fd, unsigned long long headers, unsigned int most) {
        return recvmmsg(fd, (struct mmsghdr *)headers, most, MSG_DONTWAIT, 0);
    }
    static inline int dro_send(int fd, unsigned long long headers, unsigned int most) {
        return sendmmsg(fd, (struct mmsghdr *)headers, most, MSG_DONTWAIT);
    }
    static inline void dro_fence(void) { __sync_synchronize(); }
    """
    long long dro_clock(int clock) nogil
    int dro_receive(int fd, unsigned long long headers, unsigned int most) nogil
    int dro_send(int fd, unsigned long long headers, unsigned int most) nogil
    void dro_fence() nogil
    int CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID

cdef inline long long monotonic_ns():
    return dro_clock(CLOCK_MONOTONIC)

cdef inline long long thread_time_ns():
    return dro_clock(CLOCK_THREAD_CPUTIME_ID)

cdef inline object fence():
    dro_fence()

cdef inline int receive_many(int fd, unsigned long long headers_at, unsigned int most):
    cdef int count
    with nogil:
        count = dro_receive(fd, headers_at, most)
    return count if count >= 0 else -errno

cdef inline int send_many(int fd, unsigned long long headers_at, unsigned int most):
    cdef int count
    with nogil:
        count = dro_send(fd, headers_at, most)
    return count if count >= 0 else -errno

cdef inline unsigned long long memory_address(object buffer) except 0:
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    cdef unsigned long long found = <unsigned long long>view.buf
    PyBuffer_Release(&view)
    return found

cdef inline object copy_in(object into, Py_ssize_t at, object data):
    cdef Py_buffer target, source
    PyObject_GetBuffer(into, &target, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            if at < 0 or at + source.len > target.len:
                raise ValueError("does not fit")
            memcpy(<char *>target.buf + at, source.buf, source.len)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)

cdef inline object append_part(bytearray buffer, object data, Py_ssize_t at, Py_ssize_t nbytes):
    cdef Py_buffer source
    cdef Py_ssize_t end = len(buffer)
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        if at < 0 or nbytes < 0 or at + nbytes > source.len:
            raise ValueError("is not there")
        PyByteArray_Resize(buffer, end + nbytes)
        memcpy(PyByteArray_AS_STRING(buffer) + end, <char *>source.buf + at, nbytes)
    finally:
        PyBuffer_Release(&source)
