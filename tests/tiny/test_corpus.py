"""Documents: what is made up is right, and the model is asked to say answers alone."""

from __future__ import annotations

import gzip
import json
import random
import re
from itertools import islice
from pathlib import Path

import pytest

from tiny import chats, corpus
from tiny.calls import calling
from tiny.corpus import MARKED, Problem, Template, documents, encoded, listed, problems
from tiny.tokenizer import END, STOP, train

POOL = [Problem(f"How much is {n} plus {n}?", f"{n} + {n} = {2 * n}\n#### {2 * n}") for n in range(40)]


def test_a_running_account_is_kept_right() -> None:
    for seed in range(50):
        messages = chats.ledger(random.Random(seed)).messages
        held = {w: int(n) for w, n in re.findall(r"(\w+) has (\d+) \w+\.", messages[0]["content"])}
        for asked, answer in zip(messages[1::2], messages[2::2], strict=True):
            for who, verb, many, other in re.findall(
                r"(\w+) (finds|loses|gives) (\d+)(?: to (\w+))?\.", asked["content"]
            ):
                held[who] += int(many) if verb == "finds" else -int(many)
                if other:
                    held[other] += int(many)
            name, count = re.fullmatch(r"(\w+) has (\d+) \w+\.", answer["content"]).groups()  # type: ignore[union-attr]
            assert held[name] == int(count)


def test_a_program_prints_what_is_said() -> None:
    for seed in range(50):
        *_, asked, answer = chats.program(random.Random(seed)).messages
        lines = re.search(r"```python\n(.*)\n```", asked["content"], re.DOTALL).group(1).splitlines()  # type: ignore[union-attr]
        values: dict[str, int] = {}
        for line in lines[:-1]:
            name, how, right = re.fullmatch(r"(\w) (=|\+=|-=) (.+)", line).groups()  # type: ignore[union-attr]
            value = sum(values[w] if w.isalpha() else int(w) for w in right.split(" + "))
            values[name] = {"=": value, "+=": values.get(name, 0) + value, "-=": values.get(name, 0) - value}[how]
        assert str(values[lines[-1][6]]) == answer["content"]


def test_a_word_problem_ends_in_its_number() -> None:
    for seed in range(100):
        _, answer = chats.story(random.Random(seed))
        for left, right in re.findall(r"([\d +*/-]+) = \$?(\d+)", answer):
            total, *rest = left.split()
            value = int(total)
            for sign, number in zip(rest[::2], rest[1::2], strict=True):
                value = {
                    "+": value + int(number),
                    "-": value - int(number),
                    "*": value * int(number),
                    "/": value // int(number),
                }[sign]
            assert value == int(right)
        assert re.search(r"(\d+) [a-z ]*\w*\.?\n#### \1$|#### \d+$", answer)


@pytest.mark.parametrize("maker", [*(m for m, _ in corpus._KINDS)])
def test_every_conversation_can_be_written_and_ends_with_an_answer(maker: chats.Maker) -> None:
    write = Template()
    for seed in range(20):
        chat = maker(random.Random(seed))
        assert chat.messages[-1]["role"] == "assistant"
        text = write(chat)
        assert text.endswith("<|im_end|>\n")
        assert write(maker(random.Random(seed))) == text


def test_calls_stand_in_the_form_that_the_server_reads() -> None:
    seen = 0
    for seed in range(40):
        chat = calling(random.Random(seed))
        text = Template()(chat)
        said = text[text.index("<|im_start|>user") :]
        wanted = [c["function"] for m in chat.messages for c in m.get("tool_calls", ())]
        written = re.findall(
            r"<tool_call>\n<function=(\w+)>\n(.*?)</function>\n</tool_call><\|im_end\|>", said, re.DOTALL
        )
        assert [name for name, _ in written] == [f["name"] for f in wanted]
        for (_, body), function in zip(written, wanted, strict=True):
            values = dict(re.findall(r"<parameter=(\w+)>\n(.*?)\n</parameter>", body))
            assert values == {k: v if isinstance(v, str) else json.dumps(v) for k, v in function["arguments"].items()}
            seen += 1
    assert seen > 20


def test_only_answers_and_plain_texts_are_to_be_said() -> None:
    coder = train([Template()(chats.talk(random.Random(s))) for s in range(100)], 600)
    text = Template()(chats.talk(random.Random(5)))
    tokens = encoded(coder, text, plain=False)
    assert tokens[0] == END
    said = [int(t & (MARKED - 1)) for t in tokens if t >= MARKED]
    answers = re.findall(r"(?<=assistant\n)(.*?<\|im_end\|>)", text, re.DOTALL)
    assert coder.decode(said, skip_special_tokens=False) == "".join(answers)
    assert said.count(STOP) == len(answers)
    assert coder.decode([int(t & (MARKED - 1)) for t in tokens[1:]], skip_special_tokens=False) == text
    assert (encoded(coder, "plain text", plain=True)[1:] >= MARKED).all()


def test_a_prompt_is_tokenized_as_the_beginning_of_what_follows_it() -> None:
    """Else the model would see tokens that it was not trained on where an answer begins."""
    coder = train([Template()(chats.talk(random.Random(s))) for s in range(100)], 600)
    chat = chats.talk(random.Random(7))
    whole = coder.encode(Template()(chat), add_special_tokens=False).ids
    for end in re.finditer(r"<think>\n|\n", Template()(chat)):
        part = coder.encode(Template()(chat)[: end.end()], add_special_tokens=False).ids
        assert whole[: len(part)] == part


def test_documents_are_the_same_for_the_same_seed_and_some_questions_come_again() -> None:
    sources = ["x = 1\n" * 100, "y = 2\n" * 100]
    first, again = (list(islice(documents(4, POOL, sources, 5), 60)) for _ in range(2))
    assert first == again
    assert sum(plain and text.startswith(("x", "y")) for text, plain in first) == 10
    repeated = [listed(random.Random(s), POOL) for s in range(20)]
    assert any(len(set(t.split("\n\n"))) < len(t.split("\n\n")) for t in repeated)


def test_problems_are_read_without_the_calculators_marks(tmp_path: Path) -> None:
    line = {"question": " How much? ", "answer": "It is 2+3 = <<2+3=5>>5.\n#### 5"}
    with gzip.open(tmp_path / "q.jsonl.gz", "wt") as file:
        file.write(json.dumps(line) + "\n")
    assert problems(tmp_path / "q.jsonl.gz") == [Problem("How much?", "It is 2+3 = 5.\n#### 5")]
