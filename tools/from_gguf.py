"""Unpack a GGUF file into a checkpoint that `stepwell serve` reads: float32 weights, config.json, tokenizer, chat template.

    pip install gguf
    python tools/from_gguf.py model.gguf ./model

Transformers reads the file, so only architectures that it knows there can be unpacked; Stepwell serves those of docs/models.md. Weights
take four bytes each afterwards, whatever they took before.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def unpack(source: Path, target: Path) -> None:
    """Write the checkpoint into `target`, which is made where only it is missing."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = model.config.to_dict()
    # the model counts as quantised, although nothing of it is any more
    config.pop("quantization_config", None)
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items() if name not in tied}
    target.mkdir(exist_ok=True)
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    (target / "config.json").write_text(json.dumps(config, indent=1, default=str))
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    if not options.source.is_file() or options.source.open("rb").read(4) != b"GGUF":
        parser.error(f"{options.source} is no GGUF file: give the path of one")
    unpack(options.source, options.target)


if __name__ == "__main__":
    main()
