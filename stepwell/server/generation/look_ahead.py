"""Conversations computed as their next turn will have them, while nothing else is to be done.

After a final answer, templates that forget thoughts render the turn anew once a user's message follows it. All of it would be computed
again while the user waits. What stands before that message is known as soon as the answer is.

    turn:      … user │ assistant <think>…</think> call │ tool │ … │ answer
    next turn: … user │ assistant               call │ tool │ … │ answer │ user …
                      └────────── computed ahead of need ────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.base.errors import StepwellError
from stepwell.base.geometry import Ints
from stepwell.sched.request import MAX_PRIORITY, Request, SamplingParams
from stepwell.server.generation.client import AHEAD, EngineClient
from stepwell.server.prompt.prompts import Prompt, PromptReader
from stepwell.server.read.schema import ChatCall

_WAITING = 16  # turns that wait for a quiet moment; the latest are the likeliest to go on
_QUIET = 0.02  # seconds between two looks whether nothing is to be done
_TRIES = 3


@dataclass(slots=True, eq=False)
class Turn:
    """A turn that has ended. `held` are tokens that are cached as they are: of its prompt and its answer, and what was computed ahead."""

    call: ChatCall
    tools: Sequence[dict[str, Any]]
    message: dict[str, Any]
    held: list[Ints]
    salt: str
    tries: int = 0

    def answers(self) -> list[dict[str, Any]]:
        """The answer as it may come back: with its thought, or without where the caller has never sent one back."""
        bare = {name: value for name, value in self.message.items() if name != "reasoning_content"}
        earlier = [message for message in self.call.messages if message.get("role") == "assistant"]
        if any(message.get("reasoning_content") or message.get("reasoning") for message in earlier):
            return [self.message]
        return [bare] if earlier or bare == self.message else [self.message, bare]


class LookAhead:
    """Owns the turns that wait, and the one request at a time that is made for them. Any other request ends that one."""

    def __init__(self, client: EngineClient, prompts: PromptReader, least: int = 16) -> None:
        """`least`: tokens up to which it is not worth a request. Beyond them a whole grid of rungs is lost besides."""
        self._client = client
        self._prompts = prompts
        self._least = least
        self._turns: deque[Turn] = deque(maxlen=_WAITING)
        self._task: asyncio.Task[None] | None = None

    def consider(self, turn: Turn) -> None:
        """The conversation may go on from here."""
        self._turns.append(turn)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._turns and self._client.trouble is None:
            await asyncio.sleep(_QUIET)
            if self._client.open:
                continue
            turn = self._turns.pop()
            with contextlib.suppress(StepwellError):  # nobody waits for it
                if not await self._prepare(turn) and turn.tries < _TRIES:
                    turn.tries += 1
                    self._turns.append(turn)

    async def _prepare(self, turn: Turn) -> bool:
        """Whether all is done that is worth it. Raises RequestError where the next turn cannot be rendered."""
        for message in turn.answers():
            prompt = await self._prompts.ahead(turn.call, turn.tools, message)
            if prompt is None or len(prompt.ids) - max(common(prompt.ids, held) for held in turn.held) <= self._least:
                continue
            if self._client.open or not await self._compute(prompt, turn.salt):
                return False
            turn.held.append(prompt.ids)
        return True

    async def _compute(self, prompt: Prompt, salt: str) -> bool:
        """Whether it was computed to its end."""
        params = SamplingParams(max_tokens=1)
        name = f"{AHEAD}{secrets.token_hex(8)}"
        request = Request(name, prompt.ids, params, salt, priority=MAX_PRIORITY, places=prompt.places)
        try:
            with self._client.ahead(request) as answers:
                await answers.accepted()
                while (await answers.next())[name].end is None:
                    pass
        except StepwellError:
            return False
        return True


def common(one: Ints, other: Ints) -> int:
    """Tokens that both begin with."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
