"""A straightforward draft layer: Transformers' own decoder layer over whole sequences, without pages, slots or a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

PREFIX = "mtp.layers.0."


class Reference:
    """A checkpoint with `mtp.*` tensors, in Transformers."""

    def __init__(self, directory: Path) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.tensors = load_file(directory / "model.safetensors")
        full = self.model.config.layer_types.index("full_attention")
        self.layer = type(self.model.model.layers[full])(self.model.config, full)
        self.layer.load_state_dict(self._named())
        self.eps = self.model.config.rms_norm_eps

    def drafts(self, tokens: Tensor, count: int) -> list[int]:
        """The `count` tokens drafted to follow `tokens` int64 [n] and the greedy one behind them."""
        with torch.inference_mode():
            hidden = self.model.model(tokens[None]).last_hidden_state[0]
            drawn = self.model.lm_head(hidden[-1]).argmax().view(1)
            known, rows = torch.cat((tokens, drawn)), torch.cat((torch.zeros_like(hidden[:1]), hidden))
            out: list[int] = []
            for _ in range(count):
                own = self._layer(known, rows)[-1:]
                draft = self.model.lm_head(own[-1]).argmax().view(1)
                known, rows = torch.cat((known, draft)), torch.cat((rows, own))
                out.append(int(draft))
        return out

    def _layer(self, tokens: Tensor, rows: Tensor) -> Tensor:
        embedded = self._norm("pre_fc_norm_embedding", self.model.model.embed_tokens(tokens))
        x = torch.cat((embedded, self._norm("pre_fc_norm_hidden", rows)), -1) @ self.tensors["mtp.fc.weight"].T
        places = torch.arange(len(tokens))[None]
        mask = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
        angles = self.model.model.rotary_emb(x[None], places)
        out = self.layer(x[None], position_embeddings=angles, attention_mask=mask, position_ids=places)
        return self._norm("norm", out[0])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * scale * (1 + self.tensors[f"mtp.{name}.weight"])

    def _named(self) -> dict[str, Tensor]:
        """The layer's weights, experts stacked."""
        own = {n.removeprefix(PREFIX): t for n, t in self.tensors.items() if n.startswith(PREFIX)}
        experts = len([n for n in own if n.startswith("mlp.experts.") and n.endswith("down_proj.weight")])
        if not experts:
            return own

        def stack(part: str) -> Tensor:
            return torch.stack([own.pop(f"mlp.experts.{e}.{part}_proj.weight") for e in range(experts)])

        gate, up, down = stack("gate"), stack("up"), stack("down")
        return {**own, "mlp.experts.gate_up_proj": torch.cat((gate, up), 1), "mlp.experts.down_proj": down}
