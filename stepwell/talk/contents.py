"""What callers put into messages: text, or parts of it; and what stands for a part that is no text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.base.errors import RequestError

TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Kinds of parts that are text, and the field that holds it."""
_IMAGES = frozenset({"image", "image_url", "input_image", "computer_screenshot"})
_AUDIO = frozenset({"audio", "input_audio", "output_audio"})
_FILES = frozenset({"file", "input_file", "document", "container_upload"})
_DEEPEST = 6  # parts within parts that are read


@dataclass(slots=True)
class Reader:
    """Reads contents as text. `left_out` counts the parts, by kind, for which a placeholder stands."""

    left_out: Counter[str] = field(default_factory=Counter)

    def text(self, content: object, field: str) -> tuple[str, bool]:
        """The text of a content, and whether it is nothing but placeholders. Raises RequestError.

        Parts of text are joined as they stand; what stands for another part is in a line of its own.
        """
        if isinstance(content, str):
            return content, False
        out, said = "", False
        before = self.left_out.total()
        for part, name in parts_of(content, field):
            kind = kind_of(part, name)
            if kind in TEXTS:
                text = string(part, TEXTS[kind], name)
                said = said or bool(text.strip())
                out += text if not out.endswith(_END) else f"\n{text}"
            else:
                shown = self.shown(part)
                said = said or not shown.endswith(_END)
                out += shown if not out or out.endswith("\n") else f"\n{shown}"
        return out, not said and self.left_out.total() > before

    def shown(self, part: Mapping[str, Any], depth: int = 0) -> str:
        """What a part that is no text shows to a model that reads text alone: the text in it, or a placeholder."""
        kind = str(part.get("type"))
        text = "" if kind in _IMAGES | _AUDIO else self._inner(part, depth)
        if text:
            return text
        known = "image" if kind in _IMAGES else "audio" if kind in _AUDIO else "file" if kind in _FILES else kind[:40]
        self.left_out[known] += 1
        return f"[{known}{_END}"

    def _inner(self, part: Mapping[str, Any], depth: int) -> str:
        """Text within a part: of a document, of results of a search, of tools that a provider has run."""
        if depth > _DEEPEST:
            return ""
        lines = [part[name] for name in ("title", "url", "context") if _is_text(part.get(name))]
        if _is_text(part.get("text")):
            lines.append(part["text"])
        if _is_text(part.get("name")) and isinstance(part.get("input"), dict):
            lines.append(f"{part['name']} {json.dumps(part['input'], ensure_ascii=False)}")
        source = part.get("source")
        if isinstance(source, dict):
            texts = [source.get("data")] if source.get("type") == "text" else [source.get("content")]
            lines += [found for text in texts if (found := self._nested(text, depth))]
        elif _is_text(source):
            lines.append(source)
        for name in ("content", "output", "stdout", "stderr", "error_code"):
            if found := self._nested(part.get(name), depth):
                lines.append(found)
        return "\n".join(lines)

    def _nested(self, value: object, depth: int) -> str:
        if isinstance(value, str):
            return value
        parts = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
        found = [self.shown(p, depth + 1) for p in parts if isinstance(p, dict) and isinstance(p.get("type"), str)]
        return "\n".join(found)


_END = " left out: this model reads text alone]"


def parts_of(content: object, field: str) -> list[tuple[dict[str, Any], str]]:
    """The parts of a content that is a list, each with its own name. Raises RequestError."""
    if not isinstance(content, list):
        raise RequestError(f"{field} must be a string or a list of parts", field)
    for i, part in enumerate(content):
        if not isinstance(part, dict):
            message = f"{field}.{i} must be an object such as {{'type': 'text', 'text': '…'}}"
            raise RequestError(message, f"{field}.{i}")
    return [(part, f"{field}.{i}") for i, part in enumerate(content)]


def kind_of(part: Mapping[str, Any], field: str) -> str:
    """The type of a part. Raises RequestError where it has none."""
    kind = part.get("type")
    if not isinstance(kind, str) or not kind:
        raise RequestError(f"{field}.type must be a string such as 'text'", f"{field}.type")
    return kind


def string(value: Mapping[str, Any], name: str, field: str) -> str:
    """`value[name]`, which must be a string. Raises RequestError."""
    found = value.get(name)
    if not isinstance(found, str):
        raise RequestError(f"{field}.{name} must be a string", f"{field}.{name}")
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
