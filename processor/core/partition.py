"""Which partition a key lives in: Kafka's own default (murmur2), so that every producer in the world agrees."""

# The constants of Kafka's partitioner: org.apache.kafka.common.utils.Utils.murmur2.
_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of `data`, as an unsigned number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MIX & _MASK
        word = (word ^ word >> 24) * _MIX & _MASK
        value = (value * _MIX & _MASK) ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MIX & _MASK
    value = (value ^ value >> 13) * _MIX & _MASK
    return value ^ value >> 15


def home(key: str, partitions: int) -> int:
    """The partition where all records of `key` belong, in a topic of so many partitions."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
