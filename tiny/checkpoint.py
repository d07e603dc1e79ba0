"""Writes what was trained as a checkpoint in Hugging Face format, bfloat16, in the published names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from tiny.network import Network
from tiny.tokenizer import END, STOP


def write(out: Path, network: Network, tokenizer: Path, positions: int) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer of folder `tokenizer` into `out`."""
    from safetensors.torch import save

    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in network.state_dict().items()
    }
    part = out / "model.safetensors.part"
    part.write_bytes(save(tensors, metadata={"format": "pt"}))
    part.replace(out / "model.safetensors")
    _write_json(out / "config.json", network.sizes.config(positions, (STOP, END), END))
    _write_json(out / "generation_config.json", {"do_sample": False, "eos_token_id": [STOP, END], "pad_token_id": END})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, out / name)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def read(folder: Path, network: Network) -> None:
    """Load the weights of a checkpoint into a network of its sizes."""
    from safetensors.torch import load_file

    network.load_state_dict(load_file(folder / "model.safetensors"))
