"""Made-up conversations in which tools are called, in the form that `stepwell.testing.agents.TEMPLATE` gives to calls."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tiny.chats import SHORT, Chat, Message, said
from tiny.words import CAPITALS, COLOURS, ITEMS, NAMES, THINGS

Arguments: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A wish that a tool serves: what is said, the call, what the tool answers, and what is then said."""

    wish: str
    arguments: Arguments
    result: str
    answer: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with a maker of wishes for it. `parameters`: types by name, all required."""

    name: str
    about: str
    parameters: dict[str, str]
    asked: Callable[[random.Random], Asked]

    def schema(self) -> dict[str, Any]:
        """In the form of the chat API."""
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.about, "parameters": parameters},
        }


def _weather(rng: random.Random) -> Asked:
    city = rng.choice(list(CAPITALS.values()))
    sky, degrees = rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy")), rng.randint(-5, 35)
    wish = rng.choice(
        ("What is the weather in {}?", "How is the weather in {} today?", "Is it warm in {}?", "Weather in {}, please.")
    )
    result = json.dumps({"sky": sky, "degrees": degrees})
    return Asked(wish.format(city), {"city": city}, result, f"It is {sky} in {city}, {degrees} degrees.")


def _sum(rng: random.Random) -> Asked:
    a, b = rng.randint(10, 9999), rng.randint(10, 9999)
    wish = rng.choice(("What is {} + {}?", "Add {} and {}.", "How much are {} and {} together?"))
    return Asked(wish.format(a, b), {"a": a, "b": b}, str(a + b), f"{a} + {b} = {a + b}")


def _path(rng: random.Random) -> str:
    folder = rng.choice(("src", "tests", "docs", "lib", "app"))
    return f"{folder}/{rng.choice(THINGS)}_{rng.choice(ITEMS)}.{rng.choice(('py', 'md', 'txt', 'json'))}"


def _read(rng: random.Random) -> Asked:
    path = _path(rng)
    line = f"{rng.choice(THINGS)} = {rng.randint(0, 999)}"
    wish = rng.choice(("Read {}.", "What is in {}?", "Show me the file {}.", "Open {}, please."))
    return Asked(wish.format(path), {"path": path}, line, f"The file {path} says: {line}")


def _write(rng: random.Random) -> Asked:
    path, text = _path(rng), f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
    wish = rng.choice(("Write '{1}' to {0}.", "Put '{1}' into the file {0}.", "Save '{1}' as {0}."))
    return Asked(wish.format(path, text), {"path": path, "text": text}, "ok", f"I have written it to {path}.")


def _timer(rng: random.Random) -> Asked:
    minutes = rng.randint(1, 90)
    wish = rng.choice(("Set a timer for {} minutes.", "Remind me in {} minutes.", "Wake me in {} minutes."))
    return Asked(wish.format(minutes), {"minutes": minutes}, "ok", f"The timer is set for {minutes} minutes.")


def _mail(rng: random.Random) -> Asked:
    name = rng.choice(NAMES)
    text = rng.choice(("I am late.", "See you tomorrow.", "The work is done.", "Please call me.", "Happy birthday!"))
    wish = rng.choice(("Write to {}: {}", "Send {} a message: {}", "Tell {} this: {}"))
    return Asked(wish.format(name, text), {"to": name, "text": text}, "sent", f"I have sent it to {name}.")


def _search(rng: random.Random) -> Asked:
    words = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
    paths = [_path(rng) for _ in range(rng.randint(1, 3))]
    wish = rng.choice(("Search for '{}'.", "Which files mention '{}'?", "Find '{}' in the files."))
    return Asked(wish.format(words), {"query": words}, "\n".join(paths), f"It is in {', '.join(paths)}.")


def _tests(rng: random.Random) -> Asked:
    passed, failed = rng.randint(1, 99), rng.choice((0, 0, 1, 3))
    wish = rng.choice(("Run the tests.", "Do the tests pass?", "Please run all tests."))
    end = "All tests pass." if not failed else f"{failed} of the tests failed."
    return Asked(wish, {"pattern": "all"}, f"{passed} passed, {failed} failed", end)


TOOLS = (
    Tool("get_weather", "Weather of a city.", {"city": "string"}, _weather),
    Tool("add", "Add two numbers.", {"a": "integer", "b": "integer"}, _sum),
    Tool("read_file", "Read a file.", {"path": "string"}, _read),
    Tool("write_file", "Write a file.", {"path": "string", "text": "string"}, _write),
    Tool("set_timer", "Set a timer.", {"minutes": "integer"}, _timer),
    Tool("send_message", "Send a message to a person.", {"to": "string", "text": "string"}, _mail),
    Tool("search_files", "Find files that contain a text.", {"query": "string"}, _search),
    Tool("run_tests", "Run the tests.", {"pattern": "string"}, _tests),
)


def calling(rng: random.Random) -> Chat:
    """Several tools, wishes that one of them serves, and talk that needs none."""
    tools = rng.sample(TOOLS, rng.randint(1, len(TOOLS)))
    messages: list[Message] = [said("system", "Use the tools.")] if rng.random() < 0.3 else []
    for number in range(rng.randint(1, 4)):
        if rng.random() < 0.25:
            messages += rng.choice(SHORT)(rng)
            continue
        tool = rng.choice(tools)
        messages += _used(tool, tool.asked(rng), number)
    return Chat(tuple(messages), tuple(tool.schema() for tool in tools))


def _used(tool: Tool, asked: Asked, number: int) -> list[Message]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": tool.name, "arguments": asked.arguments}}
    return [
        said("user", asked.wish),
        said("assistant", "", tool_calls=[call]),
        said("tool", asked.result, tool_call_id=f"call_{number}"),
        said("assistant", asked.answer),
    ]
