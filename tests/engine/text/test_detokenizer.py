"""Text in pieces is the text in one piece, and no character of a stop is ever shown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.text.detokenizer import ByteDecoder, StopFinder, Transcript, WindowDecoder
from stepwell.sched.request import FinishReason

BYTES = [bytes([i]) for i in range(256)]
TEXT = st.text(alphabet="ab<|é🙂東", max_size=40)
STOPS = st.lists(st.text(alphabet="ab<|é🙂", min_size=1, max_size=5), max_size=5, unique=True)


def decode_lossy(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


def split(data: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """`data` cut at some places, each piece at least empty."""
    places = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_byte_pieces_join_to_the_whole_text_even_where_bytes_are_broken(data: bytes) -> None:
    decoder = ByteDecoder(BYTES)
    assert "".join([*map(decoder.push, data), decoder.flush()]) == data.decode("utf-8", "replace")


@settings(deadline=None)
@given(TEXT)
def test_window_pieces_join_to_the_whole_text(text: str) -> None:
    decoder = WindowDecoder(decode_lossy)
    assert "".join([*map(decoder.push, text.encode()), decoder.flush()]) == text


def test_window_gives_up_on_bytes_that_never_become_a_character() -> None:
    decoder = WindowDecoder(decode_lossy)
    shown = "".join(map(decoder.push, b"\xff" * 100))
    assert 90 <= len(shown) <= 100


def test_window_keeps_the_space_that_the_prompt_gives_meaning_to() -> None:
    words = ["▁one", "▁two", "▁three"]

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    decoder = WindowDecoder(decode, context=[0])
    assert [decoder.push(1), decoder.push(2), decoder.flush()] == [" two", " three", ""]


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the answer ends: before the stop that ends first, of those the longest. By trying every end."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return end - max(lengths)
    return None


@settings(deadline=None)
@given(TEXT, STOPS, st.lists(st.integers(0, 200), max_size=8), st.integers(0, 6))
def test_any_grouping_of_tokens_gives_the_same_text(text: str, stops: list[str], cuts: list[int], least: int) -> None:
    data = list(text.encode())
    wholly = Transcript(ByteDecoder(BYTES), stops, least)
    whole = wholly.take(data, "length")
    pieces: list[str] = []
    transcript = Transcript(ByteDecoder(BYTES), stops, least)
    groups = split(data, cuts)
    for i, group in enumerate(groups):
        pieces.append(transcript.take(group, "length" if i == len(groups) - 1 else None))
        if transcript.reason:
            break
    assert "".join(pieces) == whole
    assert (transcript.reason, transcript.tokens) == (wholly.reason, wholly.tokens)


@settings(deadline=None)
@given(TEXT, STOPS)
def test_answer_ends_where_the_first_stop_begins(text: str, stops: list[str]) -> None:
    transcript = Transcript(ByteDecoder(BYTES), stops)
    shown = transcript.take(list(text.encode()), "length")
    end = first_stop(text, stops)
    assert shown == (text if end is None else text[:end])
    assert transcript.reason == ("length" if end is None else "stop")


@settings(deadline=None)
@given(TEXT, STOPS)
def test_only_a_possible_beginning_of_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    shown = ""
    for i, char in enumerate(text):
        shown += finder.push(char)
        if finder.found:
            return
        held = text[: i + 1][len(shown) :]
        assert text.startswith(shown)
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize("stops", [["<END>", "<END> now"], ["<END> now", "<END>"]])
def test_of_two_stops_the_one_that_ends_first_wins(stops: list[str]) -> None:
    finder = StopFinder(stops)
    assert finder.push("one <END> now") == "one "
    assert finder.found == "<END>"


def test_end_token_is_counted_but_not_shown() -> None:
    transcript = Transcript(ByteDecoder(BYTES))
    assert transcript.take(list(b"abc"), "stop") == "ab"
    assert (transcript.tokens, transcript.reason) == (3, "stop")


def test_tokens_after_a_stop_string_are_not_counted() -> None:
    transcript = Transcript(ByteDecoder(BYTES), ["b"])
    assert transcript.take(list(b"abcdef")) == "a"
    assert (transcript.tokens, transcript.reason) == (2, "stop")


def test_stop_strings_count_only_after_min_tokens() -> None:
    transcript = Transcript(ByteDecoder(BYTES), ["b"], min_tokens=2)
    assert transcript.take(list(b"abab")) == "aba"
    assert transcript.tokens == 4


def test_ids_beyond_the_vocabulary_are_no_text() -> None:
    assert ByteDecoder(BYTES).push(1000) == ""


@settings(deadline=None)
@given(TEXT, st.lists(st.integers(0, 200), max_size=8), st.sampled_from(["length", "stop"]))
def test_an_answer_without_stops_is_as_one_whose_stop_never_comes(
    text: str, cuts: list[int], end: FinishReason
) -> None:
    never = Transcript(ByteDecoder(BYTES), ["a stop that never comes" * 20])
    without = Transcript(ByteDecoder(BYTES))
    groups = split(list(text.encode()), cuts)
    shown = {never: "", without: ""}
    for i, group in enumerate(groups):
        for transcript in shown:
            shown[transcript] += transcript.take(group, end if i == len(groups) - 1 else None)
    assert shown[never] == shown[without]
    assert (never.reason, never.tokens) == (without.reason, without.tokens)
