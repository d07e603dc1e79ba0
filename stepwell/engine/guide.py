"""Keeps answers within a grammar: which tokens may come next.

A matcher is the memory of one request's answer. It can always be made again from the grammar and the answer so far, so the
few that are kept are a convenience: nobody has to say when a request has ended or has been preempted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.engine.grammars import Grammars, GuideError, first_line
from stepwell.sched.request import SamplingParams

Allowed: TypeAlias = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class _Matcher:
    """A grammar's parser, and how many tokens of the answer it has read."""

    grammar: str
    state: Any
    read: int


class Guides:
    """The matchers of the requests that run. `keep` is how many are remembered."""

    __slots__ = ("_grammars", "_keep", "_matchers", "_vocab")

    def __init__(self, grammars: Grammars, vocab: int, keep: int) -> None:
        self._grammars = grammars
        self._vocab = vocab
        self._keep = keep
        self._matchers: OrderedDict[str, _Matcher] = OrderedDict()

    def allowed(self, request_id: str, params: SamplingParams, answer: Ints) -> Allowed | None:
        """Which tokens may follow `answer`, bool [vocab]; None for all. Raises GuideError where none may."""
        tokens = answer.tolist()
        if params.grammar_after is not None:
            if params.grammar_after not in tokens:
                return None
            tokens = tokens[tokens.index(params.grammar_after) + 1 :]
        matcher = self._matcher(request_id, params.grammar, len(tokens))
        if not matcher.state.consume_tokens(tokens[matcher.read :]):
            raise GuideError(f"the answer left its grammar: {first_line(matcher.state.get_error())}")
        matcher.read = len(tokens)
        bits = np.frombuffer(matcher.state.compute_bitmask(), np.uint8)
        if matcher.state.is_error():
            raise GuideError(f"the grammar cannot be followed: {first_line(matcher.state.get_error())}")
        return np.unpackbits(bits, bitorder="little", count=self._vocab).astype(np.bool_)

    def _matcher(self, request_id: str, grammar: str, length: int) -> _Matcher:
        known = self._matchers.pop(request_id, None)
        if known is None or known.grammar != grammar or known.read > length:
            known = _Matcher(grammar, self._grammars.start(grammar), 0)
        self._matchers[request_id] = known
        while len(self._matchers) > self._keep:
            self._matchers.popitem(last=False)
        return known
