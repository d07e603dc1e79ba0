"""Writes stepwell/server/pages/clients.json, the configurations that the server's page shows, from docs/clients.md.

    python tools/clients.py            write it
    python tools/clients.py --check    say whether it is up to date

Only programs are shown, the sections before "Libraries and tools". In their code, the address, the model, the context and the key of
the document become {{url}}, {{model}}, {{context}} and {{key}}, for which the page puts those of the server that it is from.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs" / "clients.md"
TARGET = ROOT / "stepwell" / "server" / "pages" / "clients.json"

_FILLED = (
    ("http://127.0.0.1:8123", "{{url}}"),
    (r"\bqwen\b", "{{model}}"),
    (r"\b262144\b", "{{context}}"),
    (r"(?<![\w-])none\b", "{{key}}"),
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def programs(text: str) -> list[dict[str, object]]:
    """Name and parts of each program; a part is a paragraph (`text`) or a block (`code`, `language`)."""
    sections = re.split(r"^## ", text.split("\n# Libraries and tools")[0], flags=re.MULTILINE)[1:]
    found = [(name.strip(), list(_parts(body))) for name, _, body in (section.partition("\n") for section in sections)]
    return [{"name": name, "parts": parts} for name, parts in found if any("code" in part for part in parts)]


def _parts(body: str) -> Iterator[dict[str, str]]:
    at = 0
    for block in _BLOCK.finditer(body):
        yield from _paragraphs(body[at : block.start()])
        yield {"code": _filled(block[2]), "language": block[1]}
        at = block.end()
    yield from _paragraphs(body[at:])


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph and not paragraph.startswith(("|", "#")):
            yield {"text": _filled(_unlinked(" ".join(paragraph.split())))}


def _unlinked(text: str) -> str:
    """Links within the documents lead nowhere from the page."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def _filled(text: str) -> str:
    for pattern, name in _FILLED:
        text = re.sub(pattern, name, text)
    return text


def written() -> str:
    """The file as it should be."""
    return json.dumps(programs(SOURCE.read_text("utf-8")), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the page's configurations from docs/clients.md.")
    parser.add_argument("--check", action="store_true", help="only say whether the file is up to date")
    if not parser.parse_args().check:
        TARGET.write_text(written(), "utf-8")
    elif TARGET.read_text("utf-8") != written():
        print(
            f"{TARGET.relative_to(ROOT)} is not what docs/clients.md says: run python tools/clients.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
