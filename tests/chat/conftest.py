import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from tests.server.harness import tokenizer_directory


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(tokenizer_directory(tmp_path_factory.mktemp("tokenizer"))))
