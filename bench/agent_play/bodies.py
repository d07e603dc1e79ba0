"""What four coding agents send, in their own dialects: sizes and shapes as they were seen, words made up."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any

from stepwell.testing.tokenizer import sample_text


def words(seed: int, characters: int) -> str:
    """Text of about so many characters, the same for the same arguments."""
    text = "\n".join(sample_text(seed, characters // 30 + 2))
    return text[:characters]


def schema(seed: int) -> dict[str, Any]:
    """A schema such as agents declare: strings, some of them nullable, numbers, flags, an object."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": words(seed, 60)},
            "text": {"type": "string"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "count": {"type": "number", "exclusiveMinimum": 0},
            "sure": {"type": "boolean"},
            "deep": {"type": "object"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }


def names(count: int) -> list[str]:
    return ["read", "write", "run", "look"][:count] + [f"tool_{i}" for i in range(4, count)]


class Agent(ABC):
    """One agent's conversation: what it sends next, and how it takes an answer. `say` begins a turn, `result` answers a call."""

    path = ""
    tools = True

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.random = random.Random(seed)
        self.history: list[dict[str, Any]] = []

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The call that goes out next."""

    @abstractmethod
    def say(self, text: str) -> None:
        """The user says something."""

    @abstractmethod
    def took(self, answer: Answer) -> None:
        """The answer goes into the history as this agent writes it there."""

    @abstractmethod
    def result(self, call_id: str, text: str, image: bool = False, failed: bool = False) -> None:
        """What a call of a tool came to: text, or a picture."""

    @abstractmethod
    def remind(self, text: str) -> None:
        """Something that the program says, not the user."""

    def compact(self) -> dict[str, Any]:
        """The call that asks for a summary; afterwards the conversation begins anew."""
        self.say("Summarise all of this. " + words(self.seed + 9, 400))
        return self.body()


class Answer:
    """What came: thoughts, text, calls as (id, name, arguments), why it ended, tokens of the prompt, cached ones, and of the answer."""

    def __init__(self) -> None:
        self.thought = self.said = self.ended = ""
        self.calls: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []
        self.prompt = self.cached = self.generated = 0


class ClaudeCode(Agent):
    path = "/v1/messages?beta=true"

    def __init__(self, seed: int) -> None:
        super().__init__("claude-code", seed)
        self.status = "clean"

    def body(self) -> dict[str, Any]:
        system = [words(1, 62), words(2, 5862) + f"\nstatus: {self.status}"]
        return {
            "model": "scripted",
            "max_tokens": 32000,
            "stream": True,
            "thinking": {"type": "adaptive"},
            "metadata": {"user_id": f'{{"session_id":"{self.seed}"}}'},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "system": [{"type": "text", "text": f"x-anthropic-billing-header: {self.random.random()}"}]
            + [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in system],
            "tools": [
                {"name": name, "description": words(i, 600), "input_schema": schema(i)}
                for i, name in enumerate(names(24))
            ],
            "messages": self.history,
        }

    def say(self, text: str) -> None:
        first = not self.history
        self.history.append({"role": "user", "content": [{"type": "text", "text": text}]})
        if first:
            self.history.append({"role": "system", "content": words(5, 6062)})

    def took(self, answer: Answer) -> None:
        self.history.append({"role": "assistant", "content": answer.items or [{"type": "text", "text": "(nothing)"}]})

    def result(self, call_id: str, text: str, image: bool = False, failed: bool = False) -> None:
        content: Any = [_PICTURE] if image else text
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}
        last = self.history[-1]
        if last["role"] == "user":
            last["content"].append(block)
        else:
            self.history.append({"role": "user", "content": [block]})

    def remind(self, text: str) -> None:
        self.history.append({"role": "system", "content": text})


class OpenCode(Agent):
    path = "/v1/chat/completions"

    def __init__(self, seed: int) -> None:
        super().__init__("opencode", seed)

    def body(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "function": {"name": name, "description": words(i, 1500), "parameters": schema(i)}}
            for i, name in enumerate(names(10))
        ]
        return {
            "model": "scripted",
            "max_tokens": 8192,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": words(11, 9556)}, *self.history],
            **({"tools": tools, "tool_choice": "auto"} if self.tools else {}),
        }

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def remind(self, text: str) -> None:
        """opencode puts in no words of its own."""

    def took(self, answer: Answer) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": answer.said, "reasoning_content": answer.thought}
        if answer.calls:
            message["tool_calls"] = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in answer.calls
            ]
        self.history.append(message)

    def result(self, call_id: str, text: str, image: bool = False, failed: bool = False) -> None:
        self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})
        if image:
            self.history.append(
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}
            )


class Cline(OpenCode):
    """Calls are text to it: it declares no tools, and a result comes as a message of the user."""

    tools = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.name = "cline"

    def took(self, answer: Answer) -> None:
        self.history.append({"role": "assistant", "content": answer.said or "(nothing)"})

    def result(self, call_id: str, text: str, image: bool = False, failed: bool = False) -> None:
        details = f"<environment_details>\n{words(self.seed, 200)}\n</environment_details>"
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": f"[read] Result:\n{text}"},
            {"type": "text", "text": details},
        ]
        self.history.append({"role": "user", "content": [*parts, *([_PICTURE_URL] if image else [])]})


class Codex(Agent):
    path = "/v1/responses"

    def __init__(self, seed: int) -> None:
        super().__init__("codex", seed)
        self.history = [
            self._message("developer", words(21, 16979)),
            self._message("developer", words(22, 2126), words(23, 362)),
            self._message("user", words(24, 359)),
        ]

    def _message(self, role: str, *texts: str) -> dict[str, Any]:
        parts = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "id": f"msg_{self.random.random()}", "role": role, "content": parts}

    def body(self) -> dict[str, Any]:
        functions = [
            {"type": "function", "name": name, "description": words(i, 300), "strict": False, "parameters": schema(i)}
            for i, name in enumerate(names(7))
        ]
        space = {
            "type": "namespace",
            "name": "mcp__well",
            "description": "of wells",
            "tools": [functions[0] | {"name": "depth"}],
        }
        patch = {"type": "custom", "name": "apply_patch", "description": "changes files", "format": {"type": "text"}}
        return {
            "model": "scripted",
            "stream": True,
            "store": False,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "reasoning": {"summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": f"session-{self.seed}",
            "client_metadata": {"turn": str(self.random.random())},
            "tools": [*functions, space, patch, {"type": "web_search", "external_web_access": True}],
            "input": self.history,
        }

    def say(self, text: str) -> None:
        self.history.append(self._message("user", text))

    def took(self, answer: Answer) -> None:
        for item in answer.items:
            self.history.append(
                item | ({"content": None, "encrypted_content": None} if item["type"] == "reasoning" else {})
            )

    def result(self, call_id: str, text: str, image: bool = False, failed: bool = False) -> None:
        call = next(item for item in reversed(self.history) if item.get("call_id") == call_id)
        kind = call["type"].replace("_call", "_call_output")
        output: Any = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}] if image else text
        self.history.append({"type": kind, "call_id": call_id, "output": output})

    def remind(self, text: str) -> None:
        self.history.append(self._message("developer", text))

    def compact(self) -> dict[str, Any]:
        return super().compact() | {"tools": [], "parallel_tool_calls": False}


_PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
_PICTURE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
AGENTS = (ClaudeCode, Codex, OpenCode, Cline)
