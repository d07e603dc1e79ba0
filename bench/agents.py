"""Four coding agents played against a server whose answers follow a script: Claude Code, Codex, opencode, Cline.

    python bench/agents.py [--forgetful] [--no-thinking] [--slow 600]
    python bench/agents.py --fuzz 10000

Three turns of twelve steps each: calls one after the other and side by side, long values, errors, images, reminders, a call without an end,
an interruption, a compaction, a second process. Scheduler and cache are the real ones, the model is the tell-tale. Every answer holds words
that depend on all of KV and state, and each step is asked once more without the cache, which must give the same answer. `--forgetful` takes
a template that cannot keep thoughts.

Prints a line a step, then one line of JSON:
{"agents", "steps", "errors", "recomputed_in_turn_max", "recomputed_at_turn_max", "silence_max_s"}. Recomputed are tokens of the prompt
beside those that are new with the step, of steps that follow no fault. With `--fuzz`, bodies made from those of the agents are sent
instead: see `agent_play/fuzz.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent))

from agent_play.bodies import AGENTS, Agent, Answer, ClaudeCode, words
from agent_play.fuzz import fuzz
from agent_play.listen import Ear, Refused
from agent_play.served import SIGNATURE, Served, served

from stepwell.talk.contents import Reader
from stepwell.testing.agents import TEMPLATE, forgetful

_TURNS, _STEPS = 3, 12
_THINK = 2.0  # seconds before a user says something more


@dataclass(slots=True)
class Score:
    """What was seen. `at_turn` and `in_turn` are recomputed tokens beside new ones, of steps that follow no fault."""

    steps: int = 0
    errors: list[str] = field(default_factory=list)
    in_turn: list[int] = field(default_factory=list)
    at_turn: list[int] = field(default_factory=list)


class Player:
    """Plays one agent."""

    def __init__(self, agent: Agent, server: Served, ear: Ear, score: Score, options: argparse.Namespace) -> None:
        self._agent = agent
        self._server = server
        self._ear = ear
        self._score = score
        self._options = options
        self._random = random.Random(agent.seed)
        self._seed = agent.seed * 1000
        self._before: Answer | None = None  # the last answer, if the next prompt should go on from it
        self._new = 0  # tokens that a user has just said

    def play(self) -> None:
        for turn in range(_TURNS):
            self._say(words(self._agent.seed + turn, 300))
            for step in range(_STEPS):
                last = step == _STEPS - 1
                if turn == 1 and step == 5:
                    self._interrupt()
                answer = self._step(f"{turn}.{step}", *(("", self._text(60)) if last else self._script(turn, step)))
                if answer is not None and not last:
                    self._results(answer, step)
        self._step("compact", "", self._text(80), self._agent.compact())

    def _say(self, text: str) -> None:
        time.sleep(_THINK)
        self._agent.say(text)
        self._new = self._user(text)

    def _user(self, content: Any) -> int:
        """Tokens that a user's message adds to a prompt, the beginning of the answer included."""
        ends = "" if not self._options.no_thinking else "\n</think>\n\n"
        said = Reader().text(content, "content")[0].strip()
        return len(
            self._server.tokenizer.encode(f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n<think>\n{ends}")
        )

    def _text(self, characters: int) -> str:
        return words(self._random.randrange(1000), characters).strip()  # models begin with no blank

    def _script(self, turn: int, step: int) -> tuple[str, str]:
        """Text and calls of one answer, as a model writes them."""
        call = self._call
        if not self._agent.tools:
            return "", self._text(200)
        match step:
            case 1:
                return self._text(40), f"{call(path='/a')}\n{call(path='/b')}"
            case 2:
                return "", call(
                    "write", path="/c", text=self._text(1700), sure="True", count="1.10", deep='{"a":1,"b":[1.50]}'
                )
            case 6 if turn == 0 and self._options.slow:
                return "", call("write", path="/d", deep=json.dumps({"x": "ab " * self._options.slow}))
            case 7:
                return self._text(30), f"{call(path='/e')}\n\n{self._text(30)}"
            case 8:
                return "", '<tool_call>\n{"arguments": {"path":"/f", "sure":true}, "name": "read"}\n</tool_call>'
            case 9:
                return "", call("write", path="/g", text=self._text(90)).partition("\n</parameter>\n</function>")[0]
            case 10 if self._agent.name == "codex":
                return (
                    "",
                    "<tool_call>\n<function=apply_patch>\n<parameter=input>\n*** Begin\n</parameter>\n</function>\n</tool_call>",
                )
            case _:
                return self._text(40) if step % 2 else "", call(path=f"/{step}")

    def _call(self, name: str = "read", **values: str) -> str:
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"

    def _results(self, answer: Answer, step: int) -> None:
        broken = answer.ended in ("length", "max_tokens", "incomplete")
        for call in answer.calls:
            self._agent.result(call["id"], self._text(200), image=step == 4, failed=broken or step == 3)
        if not answer.calls:
            self._agent.result("", self._text(200), image=step == 4)
            time.sleep(_THINK)
            self._new = self._user(self._agent.history[-1]["content"])
        if step == 5:
            self._agent.remind(f"<system-reminder>\n{self._text(80)}\n</system-reminder>")

    def _interrupt(self) -> None:
        """The user stops an answer and says something else."""
        body = self._asking("", self._text(300), self._agent.body())
        self._try("interrupted", lambda: self._ear.ask(self._agent.path, body, stop_after=6))
        self._before = None
        self._say(words(self._agent.seed, 90))

    def _asking(self, said: str, rest: str, body: dict[str, Any]) -> dict[str, Any]:
        """The body, with the seed that stands for a script."""
        self._seed += 1
        encode = self._server.tokenizer.encode
        thinks = not self._options.no_thinking
        signed = [*encode(self._text(60) if thinks else "So", special=False).tolist(), *[SIGNATURE] * 4]
        middle = "\n</think>\n\n" if thinks else " "
        behind = "\n\n".join(part for part in (said, rest) if part)
        self._server.scripts.tokens[self._seed] = [*signed, *encode(middle + behind, special=False).tolist()]
        more = {} if thinks else {"chat_template_kwargs": {"enable_thinking": False}}
        return {**body, **more, "seed": self._seed}

    def _step(self, name: str, said: str, rest: str, body: dict[str, Any] | None = None) -> Answer | None:
        asked = self._asking(said, rest, self._agent.body() if body is None else body)
        if len(rest) > 1000 and "/d" in rest:
            self._server.scripts.slow.add(self._seed)
        answer = self._try(name, lambda: self._ear.ask(self._agent.path, asked))
        self._server.scripts.slow.clear()
        if answer is None:
            return None
        cold = self._try(
            name, lambda: self._ear.ask(self._agent.path, {**asked, "read_cache": False, "write_cache": False})
        )
        if cold is not None and (cold.said, cold.thought) != (answer.said, answer.thought):
            self._score.errors.append(
                f"{self._agent.name} {name}: not the cold answer: {answer.thought!r} {cold.thought!r}"
            )
        self._note(name, answer)
        self._agent.took(answer)
        fault = answer.ended in ("length", "max_tokens", "incomplete")
        self._before = None if fault else answer
        self._new = 0
        return answer

    def _note(self, name: str, answer: Answer) -> None:
        self._score.steps += 1
        told = f"{self._agent.name:12} {name:8} prompt {answer.prompt:7,} cached {answer.cached:7,}"
        if self._before is not None and name != "compact":
            if self._new:
                lost = max(0, answer.prompt - answer.cached - self._new)
                self._score.at_turn.append(lost)
            else:
                lost = max(0, self._before.prompt + self._before.generated - answer.cached)
                self._score.in_turn.append(lost)
            told += f" recomputed beside new {lost:5,} {'at turn' if self._new else ''}"
        print(told, answer.ended, flush=True)

    def _try(self, name: str, ask: Any) -> Answer | None:
        try:
            found: Answer = ask()
            return found
        except (Refused, httpx.HTTPError, ValueError) as error:
            self._score.errors.append(f"{self._agent.name} {name}: {error!r}"[:500])
            print(self._score.errors[-1], file=sys.stderr, flush=True)
            return None


def second_process(server: Served, ear: Ear, agent: ClaudeCode, score: Score) -> None:
    """Claude Code started again: the end of its instructions has changed, and all of the conversation with it."""
    agent.status = "three files changed"
    body = agent.body()
    count = {name: body[name] for name in ("model", "system", "tools", "thinking")}
    asked = {**count, "messages": [{"role": "user", "content": "x"}]}
    head = ear.client.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"]
    answer = ear.ask(agent.path, {**body, "max_tokens": 8, "seed": 1})
    print(f"a second process: its instructions end at {head:,}, resumed at {answer.cached:,}")
    if head - answer.cached > 512:
        score.errors.append(f"a second process resumed at {answer.cached} of {head}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--forgetful", action="store_true", help="a template that cannot keep thoughts")
    parser.add_argument("--no-thinking", action="store_true", help="enable_thinking: false in every call")
    parser.add_argument(
        "--slow", type=int, default=0, help="words of a value that comes at 25 tokens a second, once an agent"
    )
    parser.add_argument("--agents", default=",".join(kind.__name__ for kind in AGENTS))
    parser.add_argument("--fuzz", type=int, default=0, help="bodies to make up and send instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    score = Score()
    kinds = [kind for kind in AGENTS if kind.__name__ in options.agents.split(",")]
    with served(forgetful(TEMPLATE) if options.forgetful else TEMPLATE) as server:
        client = httpx.Client(base_url=server.url, timeout=120)
        if options.fuzz:
            return fuzz(server, client, options.fuzz, options.seed)
        ear = Ear(client)
        for number, kind in enumerate(kinds):
            agent = kind(number + 1)
            Player(agent, server, ear, score, options).play()
            if isinstance(agent, ClaudeCode):
                second_process(server, ear, agent, score)
    told = {
        "agents": len(kinds),
        "steps": score.steps,
        "errors": len(score.errors),
        "recomputed_in_turn_max": max(score.in_turn, default=0),
        "recomputed_at_turn_max": max(score.at_turn, default=0),
        "silence_max_s": round(ear.silence, 2),
    }
    print(json.dumps(told))
    return 1 if score.errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
