"""Protobuf's wire format, as far as most of a GraphDef's bytes need it: texts and their lengths.

Making a message for each small text takes ten times as long as joining its bytes, and one
parse of the whole takes less than setting its fields one by one.

Source: https://protobuf.dev/programming-guides/encoding/
"""

__all__ = ["attribute", "delimited", "field", "text_value"]

_SHORT = [bytes((length,)) for length in range(0x80)]
_LONG = 0x4000

# tensorboard/compat/proto/node_def.proto: the field `attr`, and those of its entries.
_ATTRIBUTE = 5
_KEY = 1
_VALUE = 2
# tensorboard/compat/proto/attr_value.proto: the field `s`.
_TEXT = 2


def delimited(data: bytes) -> bytes:
    """Give bytes with their length before them, as a varint."""
    length = len(data)
    if length < 0x80:
        return _SHORT[length] + data
    if length < _LONG:
        return bytes((length & 0x7F | 0x80, length >> 7)) + data
    digits = bytearray()
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    digits.append(length)
    return bytes(digits) + data


def field(number: int, data: bytes) -> bytes:
    """Give one field (a string, bytes, or a message) by its number, which is below 16."""
    return _SHORT[number << 3 | 2] + delimited(data)


def text_value(text: bytes) -> bytes:
    """Give the bytes of an AttrValue that is a text."""
    return field(_TEXT, text)


def attribute(key: str, value: bytes) -> bytes:
    """Give the bytes that a NodeDef holds of one attribute.

    Args:
        key: Its name, ASCII.
        value: An AttrValue, serialised.
    Returns:
        One entry of the map `attr`. Entries joined are a NodeDef that has just these.
    """
    return field(_ATTRIBUTE, field(_KEY, key.encode("ascii")) + field(_VALUE, value))
