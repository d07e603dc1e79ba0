"""Scales of keys and values in FP8: calibrated on a real prefill before the first page is published, and kept beside the cache on disk.

    before weights are read    which scales belong to this cache: those that its folder holds, or new ones under a random name
    once they are read         a prompt is computed from an empty state, with KV in the model's own type; its largest values give the scales
    from then on               they never change; the folder holds them under their name

The name is part of what the disk tier calls its own (`disk_tier.identity`). So pages are read by an engine with the very scales that they
were stored with: where the file is lost or damaged, the next engine draws another name, and what lies on disk is not its own any more.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

import stepwell
from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry, Ints
from stepwell.base.shapes import ModelShape
from stepwell.base.units import floor_to
from stepwell.engine.compute.sampler import Sampler
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.engine.config import EngineConfig
from stepwell.model.decoder import HybridDecoder
from stepwell.model.identity import fingerprint
from stepwell.model.kv_scales import KvScales
from stepwell.ops.ranks import Ranks
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Carry, Fresh, Sample, Step, Work
from stepwell.store.device import DeviceArena, LiveStates, Precision

log = logging.getLogger(__name__)

TOKENS = 2048
"""Of the prompt that is computed: as many as the model takes."""
_PROBLEMS = Path(stepwell.__file__).parent / "eval" / "gsm8k-test.jsonl.gz"
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Naming:
    """The scales of one cache.

    name     drawn by chance when they were calibrated, or to be calibrated under it
    found    as the folder holds them; None: they are to be calibrated
    file     where they are kept; None without a disk cache
    """

    name: str
    found: KvScales | None
    file: Path | None

    @classmethod
    def of(cls, config: EngineConfig, shape: ModelShape, parts: Mapping[str, str]) -> Naming | None:
        """Those that belong to the disk cache of `config`, whose identity is otherwise `parts`; None where FP8 is stored as it is.

        Raises ConfigError for a model whose latents are keys and values at once.
        """
        if not config.calculate_kv_scales:
            return None
        if shape.latent:
            raise ConfigError(
                f"--calculate-kv-scales is for keys and values, and a {shape.model_type} keeps latents: leave it out"
            )
        fresh, own = secrets.token_hex(8), fingerprint(parts).hex()[:16]
        if config.disk_cache is None:
            return cls(fresh, None, None)
        file = Path(config.disk_cache.path) / f"kv-scales-{own}.safetensors"
        kept = _read(file, shape) if file.exists() else None
        return cls(fresh, None, file) if kept is None else cls(*kept, file)

    @property
    def parts(self) -> dict[str, str]:
        """What they add to the identity of the cache."""
        return {"kv scales": self.name}

    def keep(self, scales: KvScales) -> None:
        """Write them beside the cache, so that they are there before any page is. Raises ConfigError where that cannot be."""
        if self.file is None:
            return
        tensors = {"keys": scales.keys.cpu(), "values": scales.values.cpu()}
        fresh = self.file.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(save(tensors, {"name": self.name, "digest": _digest(self.name, scales)}))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.file)
        except OSError as error:
            raise ConfigError(
                f"--calculate-kv-scales: the scales cannot be written to {self.file} ({error.strerror}): make room there, see who "
                "owns the folder, or leave the flag out"
            ) from error


def _digest(name: str, scales: KvScales) -> str:
    digest = blake3(name.encode())
    for part in (scales.keys, scales.values):
        digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()


def _read(file: Path, shape: ModelShape) -> tuple[str, KvScales] | None:
    """Name and scales; None if they are not what was written for such a model."""
    layers = shape.attention_layers + shape.draft_layers
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"has {file.stat().st_size:,} bytes")
        with safe_open(file, "pt") as opened:
            told = opened.metadata() or {}
            scales = KvScales(opened.get_tensor("keys"), opened.get_tensor("values"))
        if not scales.sound(layers, shape.kv_heads) or told.get("digest") != _digest(told["name"], scales):
            raise ValueError("does not hold what was written")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        log.warning(
            "%s is not used (%s): scales are calibrated again, and what the disk cache holds cannot be used with them",
            file,
            error,
        )
        return None
    return told["name"], scales


def text() -> str:
    """What the calibration reads: problems and worked answers from the test set of GSM8K."""
    lines = gzip.decompress(_PROBLEMS.read_bytes()).decode().splitlines()[:100]
    return "\n\n".join(f"{problem['question']}\n{problem['answer']}" for problem in map(json.loads, lines))


def calibration_tokens(config: EngineConfig, vocab: int) -> Ints:
    """Tokens of that text, at most TOKENS. Raises ConfigError where the checkpoint has no tokenizer."""
    from stepwell.engine.text.tokenizer import Tokenizer  # imports Transformers, which takes seconds

    tokens = Tokenizer.load(config.model).encode(text())[: min(TOKENS, config.max_model_len or TOKENS)]
    return tokens[tokens < vocab]


def calibrated(
    decoder: HybridDecoder,
    tokens: Ints,
    live: LiveStates,
    geometry: Geometry,
    precision: Precision,
    most: int,
) -> KvScales:
    """Compute `tokens` as a prompt, at most `most` at once, over pages of the model's own type, and return the scales that cover it.

    The prompt begins with an empty state in slot 0 of `live`, which nobody uses yet. Raises ConfigError where values are not finite.
    """
    shape, plain = decoder.config.shape, replace(precision, kv=precision.model)
    sizes = shape.geometry(geometry.block, geometry.rung_grid, plain.widths)
    pages = sizes.pages_for(len(tokens))
    arena = DeviceArena(pages, shape, sizes, plain, decoder.device)
    runner = TorchRunner(decoder, arena, live, Sampler(()))
    table, each = np.arange(pages, dtype=np.int32), max(geometry.rung_grid, floor_to(most, geometry.rung_grid))
    for start in range(0, len(tokens), each):
        part, state = tokens[start : start + each], Carry() if start else Fresh()
        sample = Sample(SamplingParams(), 0) if start + each >= len(tokens) else None
        work = Work("calibration", 0, 0, start, part, table, 0, state, (), sample)
        runner.launch(Step((work,))).result()
    return KvScales.covering(*([layer[:pages] for layer in layers] for layers in (arena.keys, arena.values)))


def settled(naming: Naming, ranks: Ranks, calibrate: Callable[[], KvScales]) -> KvScales:
    """The scales to serve with: as found, or else calibrated and kept. Ranks compute together, so all calibrate where one has to."""
    missing = ranks.largest(float(naming.found is None)) > 0
    made = calibrate() if missing else None
    if naming.found is not None:
        return naming.found
    assert made is not None
    naming.keep(made)
    return made
