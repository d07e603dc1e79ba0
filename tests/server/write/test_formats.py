"""Chunks of streams: the short way of a plain piece writes the same bytes as the long one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepwell.engine.text.detokenizer import ByteDecoder, Transcript
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import Request, SamplingParams
from stepwell.server.generation.choice import Choice
from stepwell.server.generation.generate import Piece
from stepwell.server.write.deltas import Said
from stepwell.server.write.formats import Shape
from stepwell.testing.tokenizer import train_tokenizer, write_tokenizer


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("with_usage", [False, True])
def test_a_plain_piece_is_written_as_one_that_might_have_scores(tmp_path: Path, chat: bool, with_usage: bool) -> None:
    write_tokenizer(tmp_path, train_tokenizer(300), 64)
    request = Request("x-3", np.arange(3, dtype=np.int32), SamplingParams())
    choice = Choice(3, request, Transcript(ByteDecoder([b"a"] * 10)), None)
    plain = Shape("id", '100 % "own"', 7, chat, Tokenizer.load(tmp_path))
    piece = Piece(choice, [Said('100 %b "said"\n\u2028é')], (), [1], False, None)
    short, long = plain.chunks(with_usage).piece(piece), replace(plain, scored=True).chunks(with_usage).piece(piece)
    assert short == long
    assert len(short) == 1 and short[0].startswith(b"data: {") and b"\\u2028" in short[0]
