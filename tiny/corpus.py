"""Documents for training: GSM8K's questions, Python's standard library, and conversations made up by `tiny.chats` and `tiny.calls`.

    python -m tiny.corpus --gsm8k DIR --out DIR [--tokens 36e6] [--seed 0]

DIR/gsm8k-train.jsonl.gz: `question` and `answer` a line (MIT licence, OpenAI 2021). Writes tokenizer.json, tokenizer_config.json and
two files of tokens into --out: train.xz and held.xz, little-endian uint16, where bit 15 marks what the model is to say (all of a plain
text, the answers of a conversation). Documents stand behind each other, each after one <|endoftext|>.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import jinja2.ext
import numpy as np

from stepwell.testing.agents import TEMPLATE
from tiny import chats, tokenizer
from tiny.calls import calling
from tiny.chats import Chat, Maker, said

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCAB = 4096
POSITIONS = 32_768
MARKED = 0x8000
"""Bit of a token that the model is to say."""
_EXCERPT = 6000  # characters of a source
_BETWEEN = 30  # conversations between two sources
_KINDS: tuple[tuple[Maker, int], ...] = (
    (chats.recall, 12),
    (chats.ledger, 16),
    (chats.places, 12),
    (chats.program, 8),
    (chats.stack, 6),
    (chats.sums, 8),
    (chats.stories, 10),
    (chats.lists, 6),
    (chats.talk, 12),
    (chats.woven, 10),
    (calling, 14),
)
_NOT_READ = re.compile(r"/(test|tests|idlelib|lib2to3|encodings|pydoc_data|site-packages|ensurepip|turtledemo)/")
_ANSWER = re.compile(r"(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", re.DOTALL)
_CALCULATOR = re.compile(r"<<[^>]*>>")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question of GSM8K and its worked answer, without the calculator's marks."""

    question: str
    answer: str


def problems(path: Path) -> list[Problem]:
    """Read a file of GSM8K."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [Problem(p["question"].strip(), _CALCULATOR.sub("", p["answer"]).strip()) for p in found]


def solved(rng: random.Random, pool: Sequence[Problem]) -> Chat:
    """Problems in a row; or solved ones as notes, and a question about one of them."""
    if rng.random() < 0.4:
        notes = rng.sample(pool, rng.randint(1, 6))
        text = "\n\n".join(f"Question: {p.question}\nAnswer: {p.answer}" for p in notes)
        asked = rng.sample(notes, min(len(notes), rng.randint(1, 2)))
        messages = [said("system", f"Solved problems:\n\n{text}")]
    else:
        asked = rng.sample(pool, rng.choice((1, 1, 2, 4, 8)))
        messages = chats.opening(rng)
    for p in asked:
        messages += [said("user", p.question), said("assistant", p.answer)]
    return Chat(tuple(messages))


def listed(rng: random.Random, pool: Sequence[Problem]) -> str:
    """Problems and answers as plain text, as `stepwell eval` asks: some of them come again, and are answered again."""
    shown = rng.sample(pool, rng.randint(2, 10))
    again = rng.sample(shown, rng.randint(0, 2))
    return "\n\n".join(f"Question: {p.question}\nAnswer: {p.answer}" for p in [*shown, *again]) + "\n\n"


def library() -> list[str]:
    """Sources of Python's standard library (PSF licence), in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [f for f in sorted(root.rglob("*.py")) if not _NOT_READ.search(f"/{f.relative_to(root)}")]
    texts = [f.read_text("utf-8", errors="ignore") for f in files]
    return [text for text in texts if 400 < len(text) < 80_000 and text.isascii()]


class Template:
    """Writes conversations as the model reads them."""

    def __init__(self) -> None:
        environment = jinja2.Environment(extensions=[jinja2.ext.loopcontrols])
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(TEMPLATE)

    def __call__(self, chat: Chat, preserve_thinking: bool = True) -> str:
        return self._template.render(messages=chat.messages, tools=chat.tools, preserve_thinking=preserve_thinking)


def _refuse(message: str) -> None:
    raise ValueError(message)


def conversation(rng: random.Random, pool: Sequence[Problem]) -> Chat:
    """One in seven is GSM8K's."""
    if rng.random() < 1 / 7:
        return solved(rng, pool)
    makers, weights = zip(*_KINDS, strict=True)
    return rng.choices(makers, weights)[0](rng)


def encoded(coder: Tokenizer, text: str, plain: bool) -> np.ndarray:
    """Tokens of a document behind one <|endoftext|>, marked where the model is to say them."""
    pieces = [text] if plain else _ANSWER.split(text)
    parts = [np.array([tokenizer.END], np.uint16)]
    for number, piece in enumerate(pieces):
        ids = np.array(coder.encode(piece, add_special_tokens=False).ids, np.uint16)
        parts.append(ids | np.uint16(MARKED) if plain or number % 2 else ids)
    return np.concatenate(parts)


def documents(seed: int, pool: Sequence[Problem], sources: Sequence[str], between: int) -> Iterator[tuple[str, bool]]:
    """Texts without end, and whether each is plain: sources in random order, `between` others behind each."""
    rng, template = random.Random(seed), Template()
    while True:
        for source in rng.sample(sources, len(sources)):
            start = rng.randrange(max(1, len(source) - _EXCERPT))
            yield source[source.rfind("\n", 0, start) + 1 :][:_EXCERPT], True
            for _ in range(between):
                if rng.random() < 0.06:
                    yield listed(rng, pool), True
                else:
                    yield template(conversation(rng, pool), rng.random() < 0.8), False


def gathered(coder: Tokenizer, texts: Iterator[tuple[str, bool]], tokens: int) -> np.ndarray:
    """The first `tokens` tokens of the documents."""
    parts: list[np.ndarray] = []
    have = 0
    while have < tokens:
        parts.append(encoded(coder, *next(texts)))
        have += len(parts[-1])
    return np.concatenate(parts)[:tokens]


def store(path: Path, tokens: np.ndarray) -> None:
    path.write_bytes(lzma.compress(tokens.astype("<u2").tobytes(), preset=6))


def load(path: Path) -> np.ndarray:
    """uint16 tokens, marks included."""
    return np.frombuffer(lzma.decompress(path.read_bytes()), "<u2")


def build(gsm8k: Path, out: Path, tokens: int, seed: int = 0, vocab: int = VOCAB, sample: int = 6000) -> None:
    """Write the tokenizer, trained on `sample` documents, and the two files of tokens into `out`.

    One in twenty problems and sources is held back for held.xz.
    """
    pool, sources = problems(gsm8k / "gsm8k-train.jsonl.gz"), library()
    kept, held = pool[len(pool) // 20 :], pool[: len(pool) // 20]
    trained, apart = [s for i, s in enumerate(sources) if i % 20], sources[::20]
    texts = (text for text, _ in islice(documents(seed + 1, kept, trained, _BETWEEN), sample))
    coder = tokenizer.train(texts, vocab)
    tokenizer.write(out, coder, POSITIONS)
    store(out / "held.xz", gathered(coder, documents(seed + 2, held, apart, _BETWEEN), tokens // 50))
    store(out / "train.xz", gathered(coder, documents(seed, kept, trained, _BETWEEN), tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder with gsm8k-train.jsonl.gz")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into; made if missing")
    parser.add_argument("--tokens", type=float, default=36e6, help="tokens to train on (default 36e6)")
    parser.add_argument("--seed", type=int, default=0, help="of the made-up conversations (default 0)")
    options = parser.parse_args()
    build(options.gsm8k, options.out, int(options.tokens), options.seed)


if __name__ == "__main__":
    main()
