"""The tokenizer of the small model: byte-level BPE in which a digit and a line end are always tokens of their own.

So a prompt that ends in a line end is tokenized as the beginning of a longer text would be, and numbers are read digit by digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.testing.agents import MARKS, TEMPLATE
from stepwell.testing.tokenizer import SPECIAL, write_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MORE_MARKS = (*MARKS, "<tool_response>", "</tool_response>", "<function=", "<parameter=", "</function>", "</parameter>")
END, START, STOP = range(3)
"""Ids of the end of a text, of the start and of the end of a message."""
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+| +(?!\S)|\s"


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A tokenizer of `vocab` entries, special tokens and marks among them."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n| ?\d"), "isolated"),
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(MORE_MARKS),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MORE_MARKS])
    return tokenizer


def write(path: Path, tokenizer: Tokenizer, max_positions: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with the chat template into the directory `path`."""
    path.mkdir(parents=True, exist_ok=True)
    write_tokenizer(path, tokenizer, max_positions)
    file = path / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8")) | {"chat_template": TEMPLATE}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
