"""Which partition a key lives in: Kafka's own default (murmur2), so that every producer in the world agrees.

librdkafka reckons it: a trade's id takes 1 us, and 3 in Python, and every new key is hashed.
"""

import ctypes

from confluent_kafka import cimpl

# A documented function of librdkafka (rdkafka.h). The extension module is linked to the library, wherever the wheel has put
# it, and whoever asks the one finds what is in the other.
# PyDLL keeps Python's lock: to let go of it for a tenth of a microsecond only invites the process's other threads to take it.
_murmur2 = ctypes.PyDLL(cimpl.__file__).rd_kafka_msg_partitioner_murmur2
# topic, key, its length, number of partitions, two pointers for callbacks; the topic and the pointers are not looked at
_murmur2.argtypes = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_murmur2.restype = ctypes.c_int32


def partition_of(key: str, partitions: int) -> int:
    """The partition where all records of `key` belong, in a topic of so many partitions."""
    data = key.encode()
    partition: int = _murmur2(None, data, len(data), partitions, None, None)
    return partition
