"""What calls that say something about the future may say."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stepwell.base.errors import RequestError
from stepwell.server.read.schema import ChatCall, CompletionCall, Messages, Name, Named, Prompts, Tools, Ttl, parse

_DEFAULT_TTL = 3600.0
_OF_PROMPTS = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


class AboutCall(Named):
    """POST /cache/prefetch and /cache/unpin: a prompt as in a completion, or messages as in a chat."""

    prompt: Prompts | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    cache_salt: Name | None = None

    def check(self) -> None:
        """Raise RequestError unless it is about one prompt."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", "prompt")

    def call(self) -> ChatCall | CompletionCall:
        """The call whose prompt is meant."""
        if self.messages is not None:
            fields: dict[str, Any] = {name: getattr(self, name) for name in _OF_PROMPTS}
            return parse(ChatCall, fields)[0]
        return parse(CompletionCall, {"prompt": self.prompt})[0]


class PinCall(AboutCall):
    """POST /cache/pin."""

    ttl_s: Ttl = Field(default=_DEFAULT_TTL)
