"""The partitioner of the simulated log: Kafka's default (murmur2) in Python."""

# The constants of Kafka's partitioner: org.apache.kafka.common.utils.Utils.murmur2.
_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of `data`, as an unsigned number."""
    whole = len(data) & ~3
    value = (_SEED ^ len(data)) & _MASK
    for at in range(0, whole, 4):
        mixed = int.from_bytes(data[at : at + 4], "little") * _MIX & _MASK
        value = (value * _MIX & _MASK) ^ ((mixed ^ mixed >> 24) * _MIX & _MASK)
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MIX & _MASK
    value = (value ^ value >> 13) * _MIX & _MASK
    return value ^ value >> 15


def partition_of(key: str, partitions: int) -> int:
    """The partition of all records of `key`, in a topic of `partitions` partitions."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
