"""Small conversations made up by rules: recall, state tracking, arithmetic, calls of tools, talk. No text of others is in them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tiny.words import ANIMALS, CAPITALS, COLOURS, DAYS, ITEMS, MONTHS, NAMES, OPPOSITES, PLACES, TALK, THINGS

Message: TypeAlias = dict[str, Any]
Maker: TypeAlias = Callable[[random.Random], "Chat"]


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages in the form of the chat API, and the tools that are shown."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def said(role: str, content: str, **more: Any) -> Message:
    """One message."""
    return {"role": role, "content": content, **more}


_SYSTEM = (
    "You are a helpful assistant.",
    "You are Stepwell Tiny, a small model. Answer briefly.",
    "Answer in one sentence.",
    "You help with small tasks. Be exact.",
    "",
)


def opening(rng: random.Random) -> list[Message]:
    """A system message, or none."""
    text = rng.choice(_SYSTEM)
    return [said("system", text)] if text else []


def _code(rng: random.Random) -> str:
    return "".join(rng.choices("0123456789", k=rng.choice((3, 4, 4, 5))))


def recall(rng: random.Random) -> Chat:
    """Facts are told, some are asked for later, with other talk between."""
    subjects = [f"{c} {t}" for c in COLOURS for t in THINGS]
    facts = {s: _code(rng) for s in rng.sample(subjects, rng.choice((3, 6, 12, 25, 50)))}
    told = [f"The code of the {s} is {c}." for s, c in facts.items()]
    lines = " ".join(told) if rng.random() < 0.5 else "\n".join(told)
    messages = [said("system", lines)] if rng.random() < 0.5 else [said("user", lines), said("assistant", "Noted.")]
    for subject in rng.sample(sorted(facts), min(len(facts), rng.randint(2, 6))):
        if rng.random() < 0.5:
            messages += rng.choice(SHORT)(rng)
        asked = rng.choice(("What is the code of the {}?", "Tell me the code of the {}.", "{}: which code?"))
        messages.append(said("user", asked.format(subject)))
        messages.append(said("assistant", f"The code of the {subject} is {facts[subject]}."))
    return Chat(tuple(messages))


def ledger(rng: random.Random) -> Chat:
    """Things change hands; who has how many is asked now and then. Only a running account answers it."""
    people = rng.sample(NAMES, rng.randint(1, 4))
    item = rng.choice(ITEMS)
    held = {p: rng.randint(0, 9) for p in people}
    start = " ".join(f"{p} has {n} {item}." for p, n in held.items())
    messages = [said("system", "Keep count. " + start)]
    for _ in range(rng.randint(3, 8)):
        moves = [_move(rng, people, held, item) for _ in range(rng.choice((1, 2, 4, 8, 16)))]
        asked = rng.choice(people)
        messages.append(said("user", f"{' '.join(moves)} How many {item} does {asked} have?"))
        messages.append(said("assistant", f"{asked} has {held[asked]} {item}."))
    return Chat(tuple(messages))


def _move(rng: random.Random, people: list[str], held: dict[str, int], item: str) -> str:
    who = rng.choice(people)
    many = rng.randint(1, 5)
    if held[who] >= many and rng.random() < 0.5:
        held[who] -= many
        if len(people) > 1 and rng.random() < 0.5:
            other = rng.choice([p for p in people if p != who])
            held[other] += many
            return f"{who} gives {many} to {other}."
        return f"{who} loses {many}."
    held[who] += many
    return f"{who} finds {many}."


def places(rng: random.Random) -> Chat:
    """People and things move about; where they are is asked."""
    people, things = rng.sample(NAMES, rng.randint(2, 5)), rng.sample(THINGS, rng.randint(1, 3))
    where = {p: rng.choice(PLACES) for p in people}
    lies = {t: rng.choice(PLACES) for t in things}
    messages = opening(rng)
    told = [f"{p} is in the {w}." for p, w in where.items()] + [f"The {t} is in the {w}." for t, w in lies.items()]
    for _ in range(rng.randint(3, 7)):
        for _ in range(rng.choice((1, 3, 6, 12))):
            who, to = rng.choice(people), rng.choice(PLACES)
            where[who] = to
            if rng.random() < 0.4:
                thing = rng.choice(things)
                lies[thing] = to
                told.append(f"{who} brings the {thing} to the {to}.")
            else:
                told.append(f"{who} goes to the {to}.")
        if rng.random() < 0.5:
            who = rng.choice(people)
            question, answer = f"Where is {who}?", f"{who} is in the {where[who]}."
        else:
            thing = rng.choice(things)
            question, answer = f"Where is the {thing}?", f"The {thing} is in the {lies[thing]}."
        messages += [said("user", " ".join([*told, question])), said("assistant", answer)]
        told = []
    return Chat(tuple(messages))


def program(rng: random.Random) -> Chat:
    """A few assignments; what is printed."""
    names = rng.sample("abcdefghkmnpqrstuvwxyz", rng.randint(2, 4))
    values = {n: rng.randint(0, 9) for n in names}
    lines = [f"{n} = {v}" for n, v in values.items()]
    for _ in range(rng.choice((2, 4, 8, 16))):
        n, other = rng.choice(names), rng.choice(names)
        step = rng.randint(1, 5)
        kind = rng.randrange(4)
        if kind == 0 and values[n] >= step:
            values[n] -= step
            lines.append(f"{n} -= {step}")
        elif kind == 1:
            values[n] = values[other]
            lines.append(f"{n} = {other}")
        elif kind == 2 and values[n] + values[other] < 100:
            values[n] += values[other]
            lines.append(f"{n} = {n} + {other}")
        else:
            values[n] += step
            lines.append(f"{n} += {step}")
    shown = rng.choice(names)
    code = "\n".join([*lines, f"print({shown})"])
    question = rng.choice(("What does this print?", "What is printed?", "Run this."))
    return Chat(
        (*opening(rng), said("user", f"{question}\n\n```python\n{code}\n```"), said("assistant", str(values[shown])))
    )


def stack(rng: random.Random) -> Chat:
    """Things are put on a pile and taken from it."""
    pile: list[str] = []
    messages = [said("system", "There is a pile of things. Say what is on top when asked.")]
    for _ in range(rng.randint(3, 7)):
        told = []
        for _ in range(rng.choice((1, 2, 4, 8))):
            if pile and rng.random() < 0.4:
                pile.pop()
                told.append("Take one off.")
            else:
                pile.append(f"{rng.choice(COLOURS)} {rng.choice(THINGS)}")
                told.append(f"Put a {pile[-1]} on it.")
        answer = f"The {pile[-1]} is on top." if pile else "The pile is empty."
        messages += [said("user", " ".join([*told, "What is on top?"])), said("assistant", answer)]
    return Chat(tuple(messages))


def _sum(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(0, 10 ** rng.randint(1, 3)), rng.randint(0, 10 ** rng.randint(1, 3))
    kind = rng.randrange(4)
    if kind == 0:
        return f"{a} + {b}", str(a + b)
    if kind == 1:
        return f"{max(a, b)} - {min(a, b)}", str(abs(a - b))
    if kind == 2:
        a, b = rng.randint(0, 12), rng.randint(0, 20)
        return f"{a} * {b}", str(a * b)
    b, answer = rng.randint(1, 12), rng.randint(0, 20)
    return f"{b * answer} / {b}", str(answer)


def sums(rng: random.Random) -> Chat:
    """Several sums, one a turn."""
    messages = opening(rng)
    for _ in range(rng.randint(2, 8)):
        question, answer = _sum(rng)
        asked = rng.choice(("What is {}?", "{} = ?", "Calculate {}.", "How much is {}?"))
        messages += [said("user", asked.format(question)), said("assistant", f"{question} = {answer}")]
    return Chat(tuple(messages))


def story(rng: random.Random) -> tuple[str, str]:
    """A word problem in two steps, and its worked answer that ends like GSM8K's."""
    who, other = rng.sample(NAMES, 2)
    text, *steps, answer = rng.choice(_STORIES)(rng, who, other, rng.choice(ITEMS))
    return text, "\n".join([*steps, f"#### {answer}"])


def _spent(rng: random.Random, who: str, other: str, item: str) -> tuple[str, ...]:
    a, b = rng.randint(2, 30), rng.randint(2, 12)
    both = a + b
    c = rng.randint(1, both)
    return (
        f"{who} has {a} {item} and buys {b} more. Then {who} gives {c} to {other}. How many {item} does {who} have left?",
        f"{who} has {a} + {b} = {both} {item} after buying.",
        f"{who} has {both} - {c} = {both - c} {item} left.",
        str(both - c),
    )


def _boxes(rng: random.Random, who: str, other: str, item: str) -> tuple[str, ...]:
    a, b, c = rng.randint(2, 30), rng.randint(2, 12), rng.randint(2, 20)
    return (
        f"{who} fills {b} boxes with {c} {item} each. {other} brings {a} more {item}. How many {item} are there in all?",
        f"The boxes hold {b} * {c} = {b * c} {item}.",
        f"In all there are {b * c} + {a} = {b * c + a} {item}.",
        str(b * c + a),
    )


def _earned(rng: random.Random, who: str, other: str, item: str) -> tuple[str, ...]:
    b, c = rng.randint(2, 12), rng.randint(2, 20)
    a = rng.randint(1, b * c)
    return (
        f"{who} earns ${b} an hour and works {c} hours. How much is left after spending ${a} on {item}?",
        f"{who} earns {b} * {c} = ${b * c}.",
        f"After spending, {b * c} - {a} = ${b * c - a} is left.",
        str(b * c - a),
    )


def _twice(rng: random.Random, who: str, other: str, item: str) -> tuple[str, ...]:
    a = rng.randint(2, 30)
    return (
        f"{who} has {a} {item}. {other} has twice as many. How many {item} do they have together?",
        f"{other} has 2 * {a} = {2 * a} {item}.",
        f"Together they have {a} + {2 * a} = {3 * a} {item}.",
        str(3 * a),
    )


def _shared(rng: random.Random, who: str, other: str, item: str) -> tuple[str, ...]:
    a, b, c = rng.randint(2, 30), rng.randint(2, 12), rng.randint(2, 20)
    return (
        f"{who} shares {b * c} {item} equally among {b} friends. {other}, one of them, already had {a}. "
        f"How many {item} does {other} have now?",
        f"Each friend gets {b * c} / {b} = {c} {item}.",
        f"{other} has {a} + {c} = {a + c} {item} now.",
        str(a + c),
    )


_STORIES = (_spent, _boxes, _earned, _twice, _shared)


def stories(rng: random.Random) -> Chat:
    """Word problems, some in a row."""
    messages = opening(rng)
    for _ in range(rng.choice((1, 1, 2, 5))):
        text, answer = story(rng)
        messages += [said("user", text), said("assistant", answer)]
    return Chat(tuple(messages))


def lists(rng: random.Random) -> Chat:
    """Words to count, to turn round, to sort."""
    messages = opening(rng)
    for _ in range(rng.randint(1, 4)):
        words = rng.sample(THINGS + COLOURS, rng.randint(2, 7))
        shown = ", ".join(words)
        question, answer = rng.choice(
            (
                ("Repeat this list: {}.", shown),
                ("Turn this list round: {}.", ", ".join(reversed(words))),
                ("Sort this list: {}.", ", ".join(sorted(words))),
                ("How many words are in this list: {}?", f"There are {len(words)}."),
                ("What is the first of these: {}?", words[0]),
                ("What is the last of these: {}?", words[-1]),
            )
        )
        messages += [said("user", question.format(shown)), said("assistant", answer)]
    return Chat(tuple(messages))


def _capital(rng: random.Random) -> tuple[str, str]:
    country = rng.choice(list(CAPITALS))
    asked = rng.choice(("What is the capital of {}?", "Which city is the capital of {}?", "{}'s capital?"))
    return asked.format(country), f"The capital of {country} is {CAPITALS[country]}."


def _opposite(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(list(OPPOSITES))
    return f"What is the opposite of {word}?", f"The opposite of {word} is {OPPOSITES[word]}."


def _animal(rng: random.Random) -> tuple[str, str]:
    animal = rng.choice(list(ANIMALS))
    return rng.choice(
        (f"What does a {animal} do?", f"Which sound does a {animal} make?")
    ), f"A {animal} {ANIMALS[animal]}."


def _after(rng: random.Random) -> tuple[str, str]:
    row, kind = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    i = rng.randrange(len(row))
    if rng.random() < 0.5:
        return f"Which {kind} comes after {row[i]}?", f"{row[(i + 1) % len(row)]} comes after {row[i]}."
    return f"Which {kind} comes before {row[i]}?", f"{row[i - 1]} comes before {row[i]}."


def _counting(rng: random.Random) -> tuple[str, str]:
    first = rng.randint(0, 40)
    last = first + rng.randint(2, 12)
    return f"Count from {first} to {last}.", ", ".join(map(str, range(first, last + 1))) + "."


def _talk(rng: random.Random) -> tuple[str, str]:
    asked, answer = rng.choice(TALK)
    return rng.choice(asked), answer


def _pair(make: Callable[[random.Random], tuple[str, str]]) -> Callable[[random.Random], list[Message]]:
    def turn(rng: random.Random) -> list[Message]:
        question, answer = make(rng)
        return [said("user", question), said("assistant", answer)]

    return turn


def _short_sum(rng: random.Random) -> tuple[str, str]:
    question, answer = _sum(rng)
    return f"What is {question}?", f"{question} = {answer}"


SHORT = tuple(map(_pair, (_talk, _talk, _talk, _capital, _opposite, _animal, _after, _counting, _short_sum, story)))
"""Makers of one turn and its answer."""


def talk(rng: random.Random) -> Chat:
    """A conversation of short turns; a name told early may be asked for late."""
    messages = opening(rng)
    name = rng.choice(NAMES) if rng.random() < 0.4 else ""
    if name:
        messages += [said("user", f"My name is {name}."), said("assistant", f"Nice to meet you, {name}!")]
    for _ in range(rng.choice((1, 1, 2, 4, 12))):
        messages += rng.choice(SHORT)(rng)
    if name:
        messages += [said("user", "What is my name?"), said("assistant", f"Your name is {name}.")]
    return Chat(tuple(messages))


def woven(rng: random.Random) -> Chat:
    """Several conversations with one behind the other, then questions about the first."""
    parts = [rng.choice((ledger, places, recall, talk, stories, lists, program))(rng) for _ in range(rng.randint(2, 6))]
    facts = {f"{rng.choice(COLOURS)} {t}": _code(rng) for t in rng.sample(THINGS, rng.randint(2, 8))}
    told = " ".join(f"The code of the {s} is {c}." for s, c in facts.items())
    messages = [said("system", told)]
    for part in parts:
        messages += [m if m["role"] != "system" else said("user", m["content"]) for m in part.messages]
    for subject in rng.sample(sorted(facts), min(3, len(facts))):
        messages.append(said("user", f"What is the code of the {subject}?"))
        messages.append(said("assistant", f"The code of the {subject} is {facts[subject]}."))
    return Chat(tuple(_answered(messages)))


def _answered(messages: list[Message]) -> list[Message]:
    """Two messages of a user in a row have an answer between them."""
    whole: list[Message] = []
    for message in messages:
        if whole and message["role"] == "user" and whole[-1]["role"] == "user":
            whole.append(said("assistant", "Noted."))
        whole.append(message)
    return whole
