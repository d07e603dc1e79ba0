"""A model's chat template: a program of the checkpoint's author that turns a conversation into the text of a prompt."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepwell.base.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TakesTooMuch(RequestError):
    """The template needs more time or memory for a conversation than it is given, or makes too much text of it."""

    @classmethod
    def of(cls, what: str) -> TakesTooMuch:
        return cls(f"the chat template {what} for these messages", "messages")


class ChatTemplate:
    """Renders conversations as Transformers does. Safe to call from several threads at once."""

    def __init__(self, hf: PreTrainedTokenizerBase, special: Mapping[str, Any] | None = None) -> None:
        """`special`: the names of special tokens as templates know them, such as bos_token; None: those of `hf`."""
        self._hf = hf
        self.special: dict[str, Any] = dict(hf.special_tokens_map if special is None else special)
        self._reserved = frozenset(inspect.signature(hf.apply_chat_template).parameters) | {"messages"}

    @classmethod
    def alone(cls, sources: str | dict[str, str] | None, special: Mapping[str, Any]) -> ChatTemplate:
        """The same template without the vocabulary that it came with."""
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        words = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        bare: Any = PreTrainedTokenizerFast
        return cls(bare(tokenizer_object=words, chat_template=sources), special)

    @property
    def sources(self) -> str | dict[str, str] | None:
        """As the checkpoint has it: one text, several by name, or None."""
        sources: str | dict[str, str] | None = self._hf.chat_template
        return sources

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        open_answer: bool = True,
        continue_last: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """A conversation as text. Raises RequestError where it cannot be rendered. Takes as long as the template likes.

        open_answer: end with the header of the assistant's turn; continue_last: leave the last message open instead.
        """
        variables = dict(variables or {})
        if self.sources is None:
            raise RequestError("this model has no chat template: use /v1/completions", "messages")
        reserved = sorted(self._reserved & set(variables))
        if reserved:
            raise RequestError(f"{reserved[0]!r} cannot be set as a template variable", "chat_template_kwargs")
        try:
            text = self._hf.apply_chat_template(
                [dict(m) for m in messages],
                tools=[dict(t) for t in tools] or None,
                tokenize=False,
                add_generation_prompt=open_answer,
                continue_final_message=continue_last,
                **{**self.special, **variables},
            )
        except MemoryError as error:
            raise TakesTooMuch.of("takes more memory than it is given") from error
        except Exception as error:  # a template is a program of the checkpoint's author: it may raise anything
            raise RequestError(f"the chat template refuses these messages: {error}", "messages") from error
        assert isinstance(text, str)
        return text
