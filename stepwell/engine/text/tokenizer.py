"""Text to tokens and back, by the tokenizer that lies beside the weights. Local files only, no code from a checkpoint."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.base.errors import ConfigError, RequestError
from stepwell.base.geometry import Ints
from stepwell.engine.text.chat_template import ChatTemplate
from stepwell.engine.text.detokenizer import ByteDecoder, TokenDecoder, WindowDecoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PART = 1 << 20  # characters whose words are counted at once
_LONGEST = 1 << 10  # characters of a token, where the vocabulary does not say
_CONTEXT = 6  # tokens of the prompt that a window decoder sees before the answer
_MARK = "stepwell"  # any word that no template writes


class Tokenizer:
    """One model's tokenizer. Safe to call from several threads at once."""

    def __init__(self, hf: PreTrainedTokenizerBase) -> None:
        self._hf = hf
        self._backend = hf.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._pieces = byte_pieces(self._backend)
        added = self._backend.get_added_tokens_decoder()
        self._special = {i: token.content.encode() for i, token in added.items() if token.special}
        self._marks = frozenset(token.content for token in added.values() if token.content)
        self._longest = (
            max([1, *map(len, self._pieces), *map(len, self._marks)]) if self._pieces is not None else _LONGEST
        )
        self._words_apart = self._pieces is not None and not any(_holds_two_words(piece) for piece in self._pieces)
        self.chat = ChatTemplate(hf)
        self.size: int = self._backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, directory: str, template: str | None = None) -> Tokenizer:
        """Read tokenizer.json and its companions. Raises ConfigError where that fails.

        template  the chat template, in place of the one that lies there
        """
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        try:
            hf = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            # Transformers may put the class that is usual for the model in place of the file's own kind of vocabulary
            if hf.is_fast and _kind(Path(directory)) not in (None, type(hf.backend_tokenizer.model).__name__):
                hf = PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"cannot read a tokenizer from {directory!r} ({error}): the directory needs tokenizer.json"
            ) from error
        if not hf.is_fast:
            raise ConfigError(f"the tokenizer in {directory!r} has no tokenizer.json: convert it to the fast format")
        if template is not None:
            hf.chat_template = template
        tokenizer = cls(hf)
        tokenizer._expect_words(directory)
        return tokenizer

    def _expect_words(self, directory: str) -> None:
        """Raises ConfigError where it cannot encode."""
        try:
            found = len(self.encode(_MARK, special=False))
        except Exception as error:  # whatever its Rust code says
            raise ConfigError(f"the tokenizer in {directory!r} cannot encode text ({error}): fetch it again") from error
        if not found:
            raise ConfigError(f"the tokenizer in {directory!r} makes no token of a word: fetch it again")

    def encode(self, text: str, special: bool = True, plain: bool = False) -> Ints:
        """Tokens of `text`, with the model's own leading or closing tokens where `special`. int32 [n].

        plain  `marks` that stand in it are text like any other
        """
        # The batch call lets other Python threads run meanwhile; the single one does not.
        backend = self._plain if plain else self._backend
        encoding = backend.encode_batch_fast([text], add_special_tokens=special)[0]
        return np.asarray(encoding.ids, dtype=np.int32)

    def fewest(self, text: str) -> int:
        """Tokens that `text` must have at least. O(len(text)), at a small part of what `encode` takes."""
        by_length = -(-len(text) // self._longest)
        if not self._words_apart:
            return by_length
        words = sum(len(text[i : i + _PART].split()) - 1 for i in range(0, len(text), _PART))
        return max(by_length, words)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        open_answer: bool = True,
        continue_last: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> Ints:
        """Tokens of a conversation in the model's own template. int32 [n]. Arguments and errors are those of `render`."""
        text = self.render(messages, open_answer=open_answer, continue_last=continue_last, variables=variables)
        return self.encode(text, special=False)

    @property
    def marks(self) -> frozenset[str]:
        """Words that are tokens of their own, wherever they stand."""
        return self._marks

    @functools.cached_property
    def _plain(self) -> Any:
        """The same vocabulary without `marks`. Read when it is first needed: that takes as long as reading the tokenizer."""
        told = json.loads(self._backend.to_str())
        told["added_tokens"] = []
        told["post_processor"] = None
        return type(self._backend).from_str(json.dumps(told))

    @property
    def template(self) -> str:
        """The source of the chat template, of all of them where there are several; empty where there is none."""
        template = self.chat.sources
        return "\n".join(template.values()) if isinstance(template, dict) else template or ""

    def turn_end(self) -> int | None:
        """The token of its own with which the chat template ends an assistant's turn; None where there is none."""
        if self.chat.sources is None:
            return None
        turns = [{"role": "user", "content": _MARK}, {"role": "assistant", "content": _MARK}]
        try:
            rest = self.render(turns, open_answer=False).rpartition(_MARK)[2].lstrip()
        except RequestError:  # a template that takes no such conversation
            return None
        first = self.encode(rest, special=False)[:1].tolist()
        added = self._backend.get_added_tokens_decoder()
        return first[0] if first and first[0] in added else None

    def token_id(self, text: str) -> int | None:
        """The token that stands for exactly `text`, if there is one."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; a special token's are its name's. Empty beyond the vocabulary."""
        name = self._backend.id_to_token(token)
        if name is None:
            return b""
        if self._pieces is not None:
            return self._pieces[token] or str(name).encode()
        return (self._backend.decode([token], skip_special_tokens=False) or str(name)).encode()

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens` without special tokens. Ids beyond the vocabulary stand for no text."""
        decoder = self.decoder()
        return "".join([*map(decoder.push, map(int, tokens)), decoder.flush()])

    def decoder(self, prompt: Ints | None = None, special: bool = False) -> TokenDecoder:
        """A fresh decoder for the answer to `prompt`. `special`: special tokens are shown by their names."""
        if self._pieces is not None:
            return ByteDecoder(self._pieces, self._special if special else None)
        context = [] if prompt is None else [int(t) for t in prompt[-_CONTEXT:]]
        return WindowDecoder(lambda ids: self._backend.decode(ids, skip_special_tokens=not special), context)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        open_answer: bool = True,
        continue_last: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """A conversation in the model's own template, rendered here and now. Arguments and errors are those of `ChatTemplate.render`."""
        return self.chat.render(
            messages, open_answer=open_answer, continue_last=continue_last, variables=variables, tools=tools
        )


def _kind(directory: Path) -> str | None:
    """What tokenizer.json calls its model ("BPE", "WordLevel", …); None where there is no such file."""
    path = directory / "tokenizer.json"
    if not path.exists():
        return None
    from tokenizers import Tokenizer as File

    return type(File.from_file(str(path)).model).__name__


def _holds_two_words(piece: bytes) -> bool:
    """Whether a token has something before and behind a space."""
    return len(piece.decode(errors="ignore").split()) > 1


def byte_pieces(backend: Any) -> list[bytes] | None:
    """The bytes of every token of a byte-level vocabulary, special ones empty; None for other kinds of vocabulary."""
    if type(backend.decoder).__name__ != "ByteLevel":
        return None
    to_byte = _byte_names()
    pieces = [b""] * backend.get_vocab_size(with_added_tokens=True)
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    for name, i in backend.get_vocab(with_added_tokens=True).items():
        if i >= len(pieces):
            pieces += [b""] * (i + 1 - len(pieces))
        if i not in special:
            known = all(char in to_byte for char in name)
            pieces[i] = bytes(to_byte[char] for char in name) if known else name.encode()
    return pieces


def _byte_names() -> dict[str, int]:
    """Byte-level vocabularies write each byte as one printable character: Latin-1 where that prints, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in names)
    return names | {chr(0x100 + i): byte for i, byte in enumerate(others)}
