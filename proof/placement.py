"""Where a record belongs: Kafka's default partitioner, from its published description.

The 32-bit MurmurHash2 of the key with Kafka's seed, its sign bit cleared, modulo the number of partitions.
"""

import struct

_WORD = 0xFFFFFFFF
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """The hash, as an unsigned 32-bit number."""
    state = (_SEED ^ len(data)) & _WORD
    whole = len(data) - len(data) % 4
    for word in struct.unpack_from(f"<{whole // 4}I", data):
        word = word * _MULTIPLIER & _WORD
        state = (state * _MULTIPLIER ^ (word ^ word >> 24) * _MULTIPLIER) & _WORD
    if data[whole:]:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    state = (state ^ (state >> 13)) * _MULTIPLIER & _WORD
    return state ^ (state >> 15)


def partition_of(key: str, partitions: int) -> int:
    """The partition that holds all records of `key`."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
