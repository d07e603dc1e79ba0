"""What is sent as a line of a stream is one line to every reader, and the same value."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from stepwell.server.write.lines import line


@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["\u2028", "a\u2029b", "\x85", "\r\n", "\x0b\x0c\x1c", "é\u2028"])))
)
def test_json_is_one_line(value: list[str]) -> None:
    written = line(value)
    assert len(written.decode().splitlines()) == 1
    assert json.loads(written) == value
