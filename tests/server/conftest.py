from collections.abc import Iterator
from typing import Any

import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from tests.server.harness import Running, running, tokenizer_directory
from tests.server.looking import chromium


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(tokenizer_directory(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[Running]:
    with running(tokenizer) as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium, driven: one for all tests, each of which opens its own page."""
    with chromium() as driver:
        yield driver
