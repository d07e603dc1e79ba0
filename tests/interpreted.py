"""What is compiled cannot be replaced from outside."""

from __future__ import annotations

import pytest

from stepwell.cache import tree

interpreted = pytest.mark.skipif(
    not str(tree.__file__).endswith(".py"), reason="what is compiled cannot be replaced: make pure"
)
"""Of tests that replace a part of it."""
