"""Which tokens end an answer: what each file of a checkpoint says of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepwell.base.errors import ConfigError
from stepwell.base.shapes import Config, text_config
from stepwell.model.files import LONGEST_CONFIG, LONGEST_VOCABULARY, read_json

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer_config.json"
TEMPLATE = "chat template"


@dataclass(frozen=True, slots=True)
class Ends:
    """The tokens that end an answer, by what names them: (source, tokens), in the order in which the sources are read.

    Checkpoints disagree with themselves: config.json often names the end of a document where only the tokenizer's file names
    the end of a turn. An answer ends at any of them.
    """

    named: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def from_config(cls, config: Config) -> Ends:
        """What config.json names, in its text part or outside of it. Raises ConfigError."""
        tokens = _tokens(CONFIG, text_config(config).get("eos_token_id", config.get("eos_token_id")))
        return cls(((CONFIG, tokens),) if tokens else ())

    @classmethod
    def from_directory(cls, directory: Path) -> Ends:
        """What config.json, generation_config.json and tokenizer_config.json name. Raises ConfigError."""
        found = list(cls.from_config(read_json(directory / CONFIG, LONGEST_CONFIG)).named)
        if (directory / GENERATION).exists():
            generation = read_json(directory / GENERATION, LONGEST_CONFIG)
            found.append((GENERATION, _tokens(GENERATION, generation.get("eos_token_id"))))
        found.append((TOKENIZER, _tokenizers_end(directory)))
        return cls(tuple((source, tokens) for source, tokens in found if tokens))

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(token for _, tokens in self.named for token in tokens))

    def sources(self, token: int) -> tuple[str, ...]:
        """What names this token."""
        return tuple(source for source, tokens in self.named if token in tokens)

    def with_template(self, token: int | None) -> Ends:
        """These, and the token with which the chat template ends a turn, where it does so with a token of its own."""
        return self if token is None else replace(self, named=(*self.named, (TEMPLATE, (token,))))

    def doubts(self) -> Iterator[str]:
        """Sentences about ends that config.json and generation_config.json, which most programs look at alone, leave out."""
        known = {token for source, tokens in self.named for token in tokens if source in (CONFIG, GENERATION)}
        for token in self.tokens:
            if token not in known:
                where = " and ".join(self.sources(token))
                yield f"token {token} ends answers because {where} says so; {CONFIG} and {GENERATION} do not name it"
        if not self.named:
            yield f"nothing names a token that ends an answer: answers run to max_tokens; name one in {GENERATION}"


def _tokens(source: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ConfigError(f"{source} needs eos_token_id as a token or a list of tokens, not {value!r}")
    return tuple(ids)


def _tokenizers_end(directory: Path) -> tuple[int, ...]:
    """The token whose text is the tokenizer's `eos_token`; none where there is no such file, text or token."""
    if not (directory / TOKENIZER).exists():
        return ()
    config = read_json(directory / TOKENIZER, LONGEST_VOCABULARY)
    end = config.get("eos_token")
    text = end.get("content") if isinstance(end, Mapping) else end
    if not isinstance(text, str):
        return ()
    return tuple(token for token, name in _added(directory, config) if name == text)[:1]


def _added(directory: Path, config: Config) -> Iterator[tuple[int, object]]:
    """Added tokens and their texts, from tokenizer_config.json or, where it lists none, from tokenizer.json."""
    listed = config.get("added_tokens_decoder")
    if isinstance(listed, Mapping):
        for token, entry in listed.items():
            if str(token).isdecimal() and isinstance(entry, Mapping):
                yield int(token), entry.get("content")
    path = directory / "tokenizer.json"
    if listed or not path.exists():
        return
    added = read_json(path, LONGEST_VOCABULARY).get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("id"), int):
            yield int(entry["id"]), entry.get("content")
