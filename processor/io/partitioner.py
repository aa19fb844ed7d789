"""Compute the partition of a key by Kafka's default partitioner (murmur2), so that all producers agree.

librdkafka computes the hash, since every new key is hashed and Python is slower.
"""

import ctypes

from confluent_kafka import cimpl

# A documented function of librdkafka (rdkafka.h). The extension module is linked to the library, wherever the wheel has put it,
# so the module's handle also finds the library's functions.
# PyDLL keeps Python's lock. Releasing the lock for so short a call would only invite a switch to another thread.
_murmur2 = ctypes.PyDLL(cimpl.__file__).rd_kafka_msg_partitioner_murmur2
# topic, key, key length, number of partitions, two pointers for callbacks; the function ignores the topic and the pointers
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
    """Return the partition of `key` in a topic with `partitions` partitions."""
    data = key.encode()
    partition: int = _murmur2(None, data, len(data), partitions, None, None)
    return partition
