"""Checkpoints whose matrices are stored in FP8: which forms are served.

A matrix is stored as e4m3 values and one scale for each block of them; a value times its scale is the weight:

    X.weight            float8_e4m3fn [out, in]
    X.weight_scale_inv  float32 or bfloat16 [⌈out / rows⌉, ⌈in / columns⌉]    ("fp8": Qwen's official packs, 128 × 128)
    X.weight_scale      the same, a row a block                                ("compressed-tensors", FP8-dynamic)

The files decide, tensor by tensor, which matrices are FP8: those that have scales. The list of exclusions in config.json is not read. Its
spelling differs from pack to pack (with and without the wrapper's prefix, fused and not), and it could only repeat what the files say.
Products are taken with activations in the model's type, so nothing is lost beyond the stored weights: kernels multiply by values as they
are stored and then by their scales (`ops/triton/stored.py`), plain torch by weights that were unpacked as they were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepwell.base.errors import ConfigError
from stepwell.base.shapes import Config
from stepwell.base.units import ceil_div
from stepwell.model.cuts import Cut, Shape

SERVED = (
    "bfloat16, float16 and float32; FP8 in blocks (quant_method 'fp8', e4m3, dynamic activations); "
    "FP8-dynamic of compressed-tensors (a scale for each row or block, a dynamic one for each token)"
)


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """How FP8 matrices are stored: what the name of a matrix's scales ends with, and the values that share one.

    columns   None: all of a row
    """

    suffix: str
    rows: int
    columns: int | None

    @classmethod
    def from_config(cls, quantization: object) -> Fp8Format | None:
        """From `quantization_config`; None where there is none. Raises ConfigError, with a list of what is served."""
        if quantization is None:
            return None
        if not isinstance(quantization, Mapping):
            raise _refused(f"quantization_config {quantization!r}")
        match quantization.get("quant_method"):
            case "fp8":
                return _official(quantization)
            case "compressed-tensors":
                return _compressed(quantization)
            case method:
                raise _refused(f"quant_method {method!r}")

    def scales_of(self, matrix: str) -> str:
        """The name of a matrix's scales."""
        return matrix + self.suffix

    def scales_shape(self, matrix: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scales of a matrix [out, in], or of a stack [experts, out, in]."""
        *stack, out, depth = matrix
        return (*stack, ceil_div(out, self.rows), ceil_div(depth, self.columns or depth))

    def cut(self, matrix: str, cut: Cut, shape: Shape) -> Cut | None:
        """What becomes of a matrix's scales where that is cut; None: nothing. Raises ConfigError where a block would be cut in two."""
        last = len(shape) - 1
        size = self.columns if cut.axis == last else self.rows if cut.axis == last - 1 else 1
        if size is None:
            return None
        blocks = cut.blocks(size, shape[cut.axis])
        if blocks is None:
            raise ConfigError(
                f"--tensor-parallel-size cuts {matrix} {list(shape)} within blocks of {self.rows} × {self.columns or 'all'} values that "
                "share a scale: use fewer ranks"
            )
        return blocks

    def columns_in(self, depth: int) -> int:
        """Columns that share a scale in a matrix of `depth` columns; if a whole row shares one, the least power of two that holds it."""
        return self.columns or 1 << (depth - 1).bit_length()

    def __str__(self) -> str:
        return f"FP8, a scale for {self.rows} × {self.columns or 'all'} values"


def _official(quantization: Config) -> Fp8Format:
    for name, served in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        if quantization.get(name, served) != served:
            raise _refused(f"FP8 with {name} = {quantization[name]!r}")
    rows, columns = _block(quantization.get("weight_block_size"))
    return Fp8Format("_scale_inv", rows, columns)


def _compressed(quantization: Config) -> Fp8Format:
    """All groups must be of one form: a group is a list of modules with settings of their own."""
    groups = quantization.get("config_groups")
    if quantization.get("format") != "float-quantized" or not isinstance(groups, Mapping) or not groups:
        raise _refused(f"compressed-tensors with format {quantization.get('format')!r}")
    formats = {_group(group) for group in groups.values()}
    if len(formats) > 1:
        raise _refused("compressed-tensors with groups of several forms")
    return formats.pop()


def _group(group: object) -> Fp8Format:
    match group:
        case {
            "weights": {"num_bits": 8, "type": "float", "strategy": strategy} as weights,
            "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
        }:
            if strategy == "channel":
                return Fp8Format("_scale", 1, None)
            if strategy == "block":
                return Fp8Format("_scale", *_block(weights.get("block_structure")))
            raise _refused(f"compressed-tensors weights with strategy {strategy!r}")
    raise _refused(f"compressed-tensors with the group {group!r}")


def _block(sizes: object) -> tuple[int, int]:
    match sizes:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise _refused(f"FP8 in blocks of {sizes!r}")


def _refused(what: str) -> ConfigError:
    return ConfigError(f"config.json has weights as {what}; served are {SERVED}")
