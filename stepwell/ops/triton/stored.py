"""How kernels read a matrix: a plain one, or FP8 values with their scales (`ops/scaled.py`).

A kernel takes the values, the scales, and as constants how many rows (`HIGH`) and columns (`WIDE`) share a scale. HIGH = 0: a plain
matrix, whose scales are not read. FP8 values become the type of the activations, which is exact; products are summed in float32, and
what a block's columns come to is multiplied by the block's scale: nothing is rounded that is not rounded with plain weights.
A tile's depth divides WIDE. To float16 a value takes a quarter of the instructions that it takes to bfloat16.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.scaled import Matrix, Scaled


def operand(matrix: Matrix) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Values, scales and constants of a matrix, as kernels take them."""
    if isinstance(matrix, Scaled):
        return matrix.values, matrix.scales, {"HIGH": matrix.rows, "WIDE": matrix.columns}
    return matrix, matrix, {"HIGH": 0, "WIDE": 1}


def operands(matrices: Matrix, shared: Matrix) -> tuple[tuple[Tensor, ...], dict[str, int]]:
    """The same for a stack and one more matrix, which is stored in the same way: values and scales of each, and the constants."""
    values, scales, constants = operand(matrices)
    more, its, same = operand(shared)
    assert constants == same, f"experts share scales by {constants}, the shared one by {same}"
    return (values, scales, more, its), constants


@triton.jit
def scales_in(WIDTH: tl.constexpr, DEPTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """How many scales a matrix has."""
    count: tl.constexpr = 0 if HIGH == 0 else ((WIDTH + HIGH - 1) // HIGH) * ((DEPTH + WIDE - 1) // WIDE)
    return count


@triton.jit
def scales_of(scales, row, real, column, DEPTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Scales of these rows at the block that holds `column`, float32; what is not `real` or behind the depth is not read."""
    if HIGH == 0:
        found = tl.zeros_like(row).to(tl.float32)
    else:
        across: tl.constexpr = (DEPTH + WIDE - 1) // WIDE
        seen = real & (row * 0 + column < DEPTH)
        found = tl.load(scales + row // HIGH * across + column // WIDE, mask=seen, other=0.0)
    return found


@triton.jit
def sharing(first, n, HIGH: tl.constexpr, N: tl.constexpr):
    """Rows whose scales the rows n of a tile need, from `first` on, a multiple of N: one alone where all share it."""
    return first + tl.arange(0, 1) if HIGH > 0 and HIGH % N == 0 else n


@triton.jit
def product(acc, x, weight, scale, HIGH: tl.constexpr, TURNED: tl.constexpr = False):
    """acc + x · weightᵀ · scale, for a tile x [M, K], weight [N, K] and scale [N], or [1] for all: [M, N].

    TURNED: the same as [N, M]. With 64 rows a tensor core takes its left operand from registers, its right one from shared memory only: so
    weights that are converted in registers are better on the left.
    """
    if HIGH == 0:
        if TURNED:
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    else:
        if x.dtype == tl.bfloat16:
            # by way of float32: from float16, which e4m3 becomes first, to bfloat16 Hopper converts one value at a time
            weight = weight.to(tl.float32)
        weight = weight.to(x.dtype)
        if TURNED:
            acc += tl.dot(weight, tl.trans(x), input_precision="ieee") * scale[:, None]
        else:
            acc += tl.dot(x, tl.trans(weight), input_precision="ieee") * scale[None, :]
    return acc


@triton.jit
def unpacked_product(acc, x, weight, scale, HIGH: tl.constexpr):
    """The same with weights that are rounded to the type of x: less to hold and to add, where products are bound by arithmetic."""
    if HIGH > 0:
        weight = (weight.to(tl.float32) * scale[:, None]).to(x.dtype)
    return tl.dot(x, tl.trans(weight), acc, input_precision="ieee")


@triton.jit
def block_tile(weight, n, real, a, DEPTH: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr):
    """Values of rows n at the B blocks from column `a` on: [N, B, WIDE]."""
    k = a + tl.arange(0, B)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    at = weight + n[:, None, None] * DEPTH + k[None, :, :]
    return tl.load(at, mask=real[:, None, None] & (k < DEPTH)[None, :, :], other=0.0)


@triton.jit
def block_scales(scales, n, real, a, DEPTH: tl.constexpr, B: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Their scales, float32 [N, B]."""
    b = a + tl.arange(0, B) * WIDE
    return scales_of(scales, n[:, None], real[:, None], b[None, :], DEPTH, HIGH, WIDE)


@triton.jit
def block_row(x, a, DEPTH: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr):
    """Of one row of activations what meets these blocks: float32 [1, B, WIDE]."""
    k = a + tl.arange(0, B)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    return tl.load(x + k, mask=k < DEPTH, other=0.0).to(tl.float32)[None, :, :]


@triton.jit
def block_sums(values, scales, row):
    """[N]: values · row, block by block, times the blocks' scales."""
    return tl.sum(tl.sum(values.to(tl.float32) * row, 2) * scales, 1)


@triton.jit
def _unpack_kernel(values, scales, out, WIDTH, DEPTH: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
                   HIGH: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    n, k = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.program_id(1) * K + tl.arange(0, K)
    real, seen = n < WIDTH, (n < WIDTH)[:, None] & (k < DEPTH)[None, :]
    at = n[:, None] * DEPTH + k[None, :]
    scale = scales_of(scales, n, real, tl.program_id(1) * K, DEPTH, HIGH, WIDE)
    tl.store(out + at, tl.load(values + at, mask=seen, other=0.0).to(tl.float32) * scale[:, None], mask=seen)


def unpack(matrix: Scaled, out: Tensor) -> None:
    """Write the weights to `out` [out, in], contiguous, rounded once to its type."""
    width, depth = matrix.shape
    values, scales, constants = operand(matrix)
    k = min(128, matrix.columns)
    _unpack_kernel[(triton.cdiv(width, 64), triton.cdiv(depth, k))](
        values, scales, out, width, DEPTH=depth, N=64, K=k, **constants, num_warps=4
    )


def columns_of(matrix: Matrix, depth: int) -> int:
    """The depth of a tile: `depth`, or as many columns as share a scale where those are fewer."""
    return min(depth, matrix.columns) if isinstance(matrix, Scaled) else depth


def blocks_of(matrix: Scaled) -> int:
    """A power of two: so many blocks of columns hold a whole row."""
    return int(triton.next_power_of_2(triton.cdiv(matrix.shape[-1], matrix.columns)))
