"""What pyproject.toml cannot say: the README of a package, and the address of the repository, which STEPWELL_URL names at the build.

    STEPWELL_URL=https://HOST/OWNER/NAME pip wheel --no-deps .

In the repository links of the README are relative. A package index shows the text alone, so there they name the address of each file.
Without the variable the links stay as they are, and the package names no address.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from setuptools import setup

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str, url: str) -> str:
    """The same Markdown with its relative links below the repository's address: pictures as files, all else as pages."""

    def whole(link: re.Match[str]) -> str:
        picture, title, target = link.groups()
        return f"{picture}{title}({url}/{'raw' if picture else 'blob'}/main/{target})"

    return _LINK.sub(whole, text)


def told(url: str) -> dict[str, Any]:
    """What `setup` is given; `url` may be empty."""
    readme = Path(__file__).with_name("README.md").read_text("utf-8")
    given: dict[str, Any] = {"long_description": readme, "long_description_content_type": "text/markdown"}
    if url:
        pages = {
            "Source": "",
            "Documentation": "/tree/main/docs",
            "Changelog": "/blob/main/CHANGELOG.md",
            "Issues": "/issues",
        }
        given |= {
            "long_description": absolute(readme, url),
            "project_urls": {name: url + at for name, at in pages.items()},
        }
    return given


if __name__ == "__main__":
    setup(**told(os.environ.get("STEPWELL_URL", "").rstrip("/")))
