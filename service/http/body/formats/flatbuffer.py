"""Whether a message of an Arrow IPC stream has compressed buffers, which pyarrow does not tell before it has read them.

The metadata of a message is a flatbuffer: tables that begin with the distance back to a list of where their fields are.
Three of its fields lead to the answer (Message.header, DictionaryBatch.data, RecordBatch.compression of Arrow's
Message.fbs and Schema.fbs). Offsets that lead nowhere raise ``struct.error``.
"""

from struct import unpack_from

_HEADER_TYPE, _HEADER, _DATA, _COMPRESSION = 1, 2, 1, 3
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def is_compressed(metadata: bytes) -> bool:
    """Look into the metadata of one message; raises struct.error for bytes that are none."""
    message = _follow(metadata, 0)
    kind, header = _field(metadata, message, _HEADER_TYPE), _field(metadata, message, _HEADER)
    if not kind or not header:
        return False
    batch = _follow(metadata, header)
    if metadata[kind] == _DICTIONARY_BATCH:
        data = _field(metadata, batch, _DATA)
        return bool(data) and bool(_field(metadata, _follow(metadata, data), _COMPRESSION))
    return metadata[kind] == _RECORD_BATCH and bool(_field(metadata, batch, _COMPRESSION))


def _follow(buffer: bytes, place: int) -> int:
    """Where the table is that an offset at ``place`` refers to."""
    (distance,) = unpack_from("<I", buffer, place)
    return place + int(distance)


def _field(buffer: bytes, table: int, number: int) -> int:
    """Where a field of a table is, 0 when it is absent."""
    (back,) = unpack_from("<i", buffer, table)
    places = table - int(back)
    (size,) = unpack_from("<H", buffer, places)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = unpack_from("<H", buffer, places + 4 + 2 * number)
    return table + int(offset) if offset else 0
