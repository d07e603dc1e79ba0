"""One sequence as its caller sees it: tokens and text as they come, with thoughts and calls separated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.text.detokenizer import Transcript
from stepwell.sched.request import FinishReason, Request, Scored
from stepwell.server.generation.answers import Delivery
from stepwell.server.http.errors import GenerationFailed
from stepwell.server.parse.answer import Answer
from stepwell.server.parse.reply import ReplyReader
from stepwell.server.prompt.written import Written
from stepwell.server.write.deltas import CallOpened, Delta, Said, Thought
from stepwell.server.write.scores import Entry

_NO_ECHO: tuple[Sequence[Delta], Sequence[Entry]] = ((), ())


class Choice:
    """One sequence as its caller sees it.

    spoken    characters of text, and calls of tools
    thoughts  tokens of the answer up to the end of its thought
    answer    what it is made of
    tokens    its tokens
    """

    __slots__ = (
        "_echo",
        "_end_of_thought",
        "_prompt",
        "_reader",
        "_silent",
        "answer",
        "index",
        "outcome",
        "prompt_scores",
        "request_id",
        "spoken",
        "started",
        "thoughts",
        "tokens",
        "transcript",
    )

    def __init__(
        self,
        index: int,
        request: Request,
        transcript: Transcript,
        reader: ReplyReader | None,
        end_of_thought: int | None = None,
    ) -> None:
        """`reader` None: all text is simply said."""
        self.index = index
        self.request_id = request.id
        self.transcript = transcript
        self.outcome: AdmissionOutcome | None = None
        self.started: float | None = None
        self.spoken = 0
        self.thoughts = 0
        self.prompt_scores: list[Scored] = []
        self._prompt = request.prompt
        self._reader = reader
        self._end_of_thought = end_of_thought
        self._echo: str | None = None
        self._silent = False
        self.answer = Answer()
        self.tokens: list[int] = []

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self._prompt)

    @property
    def reason(self) -> FinishReason | None:
        return self.transcript.reason

    @property
    def finish(self) -> str | None:
        """The reason as OpenAI's API names it. An answer with a call that has no end is cut, not finished."""
        called = self.reason == "stop" and self._reader is not None and self._reader.calls > 0 and not self._reader.cut
        return "tool_calls" if called else self.reason

    def echo(self, text: str) -> None:
        """Begin the answer with the prompt's own text."""
        self._echo = text

    def silence(self) -> None:
        """Hide the one token that the engine always samples, where none was asked for (`max_tokens` 0)."""
        self._silent = True

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's tokens."""
        ids: list[int] = self._prompt.tolist()
        return ids

    def take(self, delivery: Delivery) -> tuple[Sequence[Delta], Sequence[Entry], Sequence[int]]:
        """What a delivery makes visible, the scores of its tokens, and those tokens of it that belong to the answer.

        Raises GenerationFailed where the engine gave up.
        """
        if self.outcome is None:
            self.outcome = delivery.outcome
        if delivery.end in ("error", "abort"):
            raise GenerationFailed(delivery.message or "the engine gave up this request: send it again")
        for first, scores in delivery.prompt_scores:
            self.prompt_scores += scores[1 + len(self.prompt_scores) - first :]
        echoed, entries = self._echoed(delivery) if self._echo is not None else _NO_ECHO
        tokens: Sequence[int] = () if self._silent else delivery.tokens
        end: FinishReason | None = "length" if self._silent and delivery.end else delivery.end
        before = self.transcript.tokens
        thinking = self._reader is not None and self._reader.thinking
        said = self._read(self.transcript.take(tokens, end))
        if self._reader is not None:
            self._count_thoughts(tokens, before, thinking or any(isinstance(d, Thought) for d in said))
        for delta in said:
            self.spoken += len(delta.text) if isinstance(delta, Said) else isinstance(delta, CallOpened)
        self.answer.add(said)
        self.tokens += tokens
        counted = tokens[: self.transcript.tokens - before]
        if delivery.scores:
            entries = [*entries, *zip(counted, delivery.scores, strict=False)]
        return [*echoed, *said] if echoed else said, entries, counted

    def written(self) -> Written | None:
        """The calls of an ended answer, kept so that later prompts can repeat them exactly as they were written."""
        if self._reader is None or self.finish != "tool_calls" or self._reader.over:
            return None
        return self.answer.written(self._reader.tail)

    def held(self) -> Ints:
        """Tokens of the prompt and the answer."""
        return np.concatenate((self._prompt, np.asarray(self.tokens, np.int32)))

    def prompt_entries(self) -> list[Entry]:
        """Every token of the prompt with its score, or nothing where they were not asked for."""
        if len(self.prompt_scores) < len(self._prompt) - 1:
            return []
        return list(zip(self._prompt.tolist(), [None, *self.prompt_scores], strict=True))

    def _count_thoughts(self, tokens: Sequence[int], before: int, thought: bool) -> None:
        """`tokens` follow `before` others; `thought`: some of them are one, or end one.

        Where the mark that ends a thought is no token of its own, tokens that arrive together count together.
        """
        if not thought:
            return
        self.thoughts = self.transcript.tokens
        if self._reader is not None and not self._reader.thinking and self._end_of_thought in tokens:
            self.thoughts = before + tokens.index(self._end_of_thought) + 1

    def _echoed(self, delivery: Delivery) -> tuple[Sequence[Delta], Sequence[Entry]]:
        if self._echo is None or not delivery.tokens:
            return _NO_ECHO
        text, self._echo = self._echo, None
        return [Said(text)] if text else [], self.prompt_entries()

    def _read(self, text: str) -> list[Delta]:
        if self._reader is None:
            return [Said(text)] if text else []
        deltas = self._reader.push(text) if text else []
        ended = self.transcript.reason is not None
        if ended and not self._reader.over:
            deltas += self._reader.flush(cut=self.reason == "length" or self.transcript.stop is not None)
        if self._reader.over or (ended and self._reader.cut and self.transcript.stop is None):
            self.transcript.reason = "length" if self._reader.cut else "stop"
        return deltas
