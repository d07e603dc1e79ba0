"""Models by name: downloads a checkpoint from the Hugging Face Hub, or finds it in its client's cache. Weights and texts, never code."""

from __future__ import annotations

import re
from pathlib import Path

from stepwell.base.errors import ConfigError

WANTED = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model")
"""Files of a repository that are fetched; no code is among them, and no weights that could be some."""
_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def expect_checkpoint(model: str) -> None:
    """Look whether `model`, unless it may be a name of the Hub, is a directory with a config. Raises ConfigError."""
    directory = Path(model)
    if not directory.exists() and _ID.fullmatch(model):
        return
    if directory.suffix == ".gguf" or (not (directory / "config.json").exists() and any(directory.glob("*.gguf"))):
        raise ConfigError(
            f"{model} is GGUF: safetensors checkpoints are served; docs/models.md says how to unpack it into one"
        )
    if not directory.is_dir():
        kind = "is a file" if directory.exists() else "does not exist"
        raise ConfigError(
            f"{model} {kind}: give the directory of a Hugging Face checkpoint, or a name such as Qwen/Qwen3.5-4B"
        )
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{model} has no config.json: give the directory of a Hugging Face checkpoint")


def local_model(model: str, revision: str | None = None, cache: str | None = None, fetch: bool = True) -> str:
    """The directory of a model that is given as one, or as a name such as "Qwen/Qwen3.5-35B-A3B". Raises ConfigError.

    revision  branch, tag or commit; None: the main branch
    cache     where the Hub's client keeps what it has fetched; None: where it always does
    fetch     False: only what is there already, and nothing is asked for
    """
    if Path(model).exists() or not _ID.fullmatch(model):
        if revision is not None:
            raise ConfigError(f"--revision is for models of the Hub: {model!r} is a directory here; leave it out")
        return model
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigError(f"{model!r} is no directory here, and the Hub needs huggingface_hub ({error})") from error
    place = Path(cache or constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}"
    wanted = model if revision is None else f"{model} at {revision}"
    try:
        return snapshot_download(
            model, revision=revision, cache_dir=cache, allow_patterns=list(WANTED), local_files_only=not fetch
        )
    except LocalEntryNotFoundError as error:
        reached = "and the Hub cannot be reached" if fetch else "and nothing was asked for"
        raise ConfigError(
            f"{wanted} is neither a directory here ({Path(model).absolute()}) nor in the Hub's cache ({place}), {reached}: "
            "give a directory, or fetch it where there is a network (hf download) and copy the cache"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ConfigError(f"the Hub does not give {wanted}: {str(error).strip().splitlines()[0]}") from error
