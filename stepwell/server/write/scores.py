"""Log-probabilities in the two shapes that OpenAI's API has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import Scored

Entry: TypeAlias = tuple[int, Scored | None]
"""A token and its score; the first token of a prompt has none."""


class TextScores:
    """For completions: parallel lists. Keeps the place in the text from call to call."""

    __slots__ = ("_decoder", "_offset", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder()
        self._offset = 0

    def write(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """`tokens`, `token_logprobs`, `top_logprobs` and `text_offset` of more tokens."""
        offsets = []
        for token, _ in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.push(token))
        return {
            "tokens": [self._name(token) for token, _ in entries],
            "token_logprobs": [None if scored is None else scored.logprob for _, scored in entries],
            "top_logprobs": [self._top(token, scored) for token, scored in entries],
            "text_offset": offsets,
        }

    def _top(self, token: int, scored: Scored | None) -> dict[str, float] | None:
        """The likeliest tokens and the chosen one; of two with one name the likelier stays."""
        if scored is None:
            return None
        named: dict[str, float] = {}
        for rival, logprob in (*scored.top, (token, scored.logprob)):
            named.setdefault(self._name(rival), logprob)
        return named

    def _name(self, token: int) -> str:
        """The token's text; its bytes, written out, where they are no text of their own."""
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class ChatScores:
    """For chats: one object a token."""

    __slots__ = ("_tokenizer",)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def write(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """`content`: one entry for each of more tokens."""
        content = []
        for token, scored in entries:
            assert scored is not None, "only prompts have tokens without a score"
            top = [self._entry(rival, logprob) for rival, logprob in scored.top]
            content.append({**self._entry(token, scored.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


Scores: TypeAlias = TextScores | ChatScores


def prompt_scores(tokenizer: Tokenizer, entries: Sequence[Entry]) -> list[dict[str, Any] | None]:
    """`prompt_logprobs`: for each prompt token, the likeliest tokens in its place and itself, by id."""
    return [None if scored is None else _by_id(tokenizer, token, scored) for token, scored in entries]


def _by_id(tokenizer: Tokenizer, token: int, scored: Scored) -> dict[str, Any]:
    likely = dict((*scored.top, (token, scored.logprob)))
    return {
        str(rival): {"logprob": logprob, "decoded_token": tokenizer.token_bytes(rival).decode(errors="replace")}
        for rival, logprob in likely.items()
    }
