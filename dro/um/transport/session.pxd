cdef class DataReader:
    pass
