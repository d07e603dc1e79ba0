"""JSON that stays on one line of an event stream for every parser."""

from __future__ import annotations

import orjson

_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""U+2028, U+2029 and U+0085 end a line for many readers (Python's `splitlines` among them), and may stand in JSON as they are."""


def line(value: object) -> bytes:
    """`value` as JSON without any character that ends a line."""
    written = orjson.dumps(value)
    if written.isascii():
        return written
    for end, escaped in _ENDS:
        written = written.replace(end, escaped)
    return written
