"""Plots as text: SVG shapes that stretch with the page, labels in HTML around them, so that a phone shows both in full size.

a figure    y labels │ svg, 1000 × 100 units, stretched
                     └ x labels
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

WIDTH = 1000.0
HEIGHT = 100.0
LINES = ("device", "host", "disk", "lost", "bound", "sixth", "seventh", "eighth")
"""Classes of lines that can be told apart by colour."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One named series over the same x values. `kind` is its class in the style sheet, which gives the colour."""

    name: str
    kind: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A label below a plot. `at` is a share of its width, from the left."""

    at: float
    text: str

    @property
    def side(self) -> str:
        """The class that keeps it within the plot: what stands at an edge does not hang over it."""
        return "first" if self.at < 0.05 else "last" if self.at > 0.95 else "inner"


def round_up(value: float, base: float = 1.0) -> float:
    """The next round number from `value` on, in units of `base`: 1, 2, 4, 6 or 8 times a power of ten, so that its half is round, too."""
    if value <= 0:
        return base
    power = 10.0 ** floor(log10(value / base) + 1e-9)
    return base * power * next(step for step in (1, 2, 4, 6, 8, 10) if step * power * base >= value * (1 - 1e-9))


def round_bytes(count: float) -> float:
    """The same in the binary unit that it is written in."""
    return round_up(count, next((unit for unit in (2.0**40, 2.0**30, 2.0**20, 2.0**10) if count >= unit), 1.0))


def times(end: float, most: int = 6) -> list[Tick]:
    """Ticks at round seconds of an axis from 0 to `end`, about `most` of them."""
    if end <= 0:
        return []
    step = round_up(end / most)
    return [Tick(i * step / end, f"{i * step:,g} s") for i in range(floor(end / step + 1e-9) + 1)]


def spread(labels: Sequence[str]) -> list[Tick]:
    """Labels at equal distances, from the left edge to the right one."""
    return [Tick(i / max(1, len(labels) - 1), text) for i, text in enumerate(labels)]


def figure(svg: str, y: Sequence[str], x: Sequence[Tick], label: str, height: str = "tall") -> str:
    """`svg` between its labels: `y` from top to bottom, `x` at their places. `label` says what is seen."""
    ys = "".join(f"<span>{escape(text)}</span>" for text in y)
    xs = "".join(
        f'<span class="{tick.side}" style="left:{100 * tick.at:.2f}%">{escape(tick.text)}</span>' for tick in x
    )
    box = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}"'
    return f'<div class="plot {height}"><div class="y">{ys}</div><svg {box}>{svg}</svg><div class="x">{xs}</div></div>'


def stacked(layers: Sequence[Layer], top: float) -> str:
    """Areas upon each other, the first at the bottom; x values evenly spread, `top` at the upper edge."""
    count = max((len(layer.values) for layer in layers), default=0)
    if count == 0 or top <= 0:
        return ""
    floor = [0.0] * count
    out = []
    for layer in layers:
        ceiling = [low + value for low, value in zip(floor, layer.values, strict=True)]
        upper = _points(ceiling, top)
        lower = list(reversed(_points(floor, top)))
        out.append(
            f'<polygon class="{layer.kind}" points="{_joined(upper + lower)}"><title>{escape(layer.name)}</title></polygon>'
        )
        floor = ceiling
    return "".join(out)


def line(layer: Layer, top: float) -> str:
    """A line over x values evenly spread."""
    if not layer.values or top <= 0:
        return ""
    points = _joined(_points(layer.values, top))
    return f'<polyline class="line {layer.kind}" points="{points}"><title>{escape(layer.name)}</title></polyline>'


def path(points: Iterable[tuple[float, float]], kind: str) -> str:
    """A line through points given as shares (from the left, from the bottom) of the plot."""
    placed = [(x * WIDTH, HEIGHT * (1 - y)) for x, y in points]
    return f'<polyline class="line {kind}" points="{_joined(placed)}"/>'


def shade(start: float, end: float, text: str) -> str:
    """A grey band between two shares of the width."""
    left, width = start * WIDTH, max(0.0, end - start) * WIDTH
    return f'<rect class="shade" x="{left:.1f}" y="0" width="{width:.1f}" height="{HEIGHT:g}"><title>{escape(text)}</title></rect>'


def columns(bars: Sequence[tuple[str, Sequence[tuple[str, float]]]], top: float) -> str:
    """Upright bars of stacked parts: (what to say of it, [(class, value), …])."""
    if not bars or top <= 0:
        return ""
    step = WIDTH / max(len(bars), 12)
    out = []
    for i, (text, parts) in enumerate(bars):
        y, rects = HEIGHT, []
        for kind, value in parts:
            size = HEIGHT * value / top
            y -= size
            if size:
                rects.append(
                    f'<rect class="{kind}" x="{i * step:.1f}" y="{y:.2f}" width="{0.82 * step:.1f}" height="{size:.2f}"/>'
                )
        out.append(f"<g><title>{escape(text)}</title>{''.join(rects)}</g>")
    return "".join(out)


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """(class, name) pairs."""
    return (
        '<p class="legend">'
        + "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in entries)
        + "</p>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns after the first are numbers."""
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """(figure, what it is, note) side by side."""
    cells = (f"<div><b>{escape(a)}</b><span>{escape(b)}</span><small>{escape(c)}</small></div>" for a, b, c in figures)
    return f'<div class="tiles">{"".join(cells)}</div>'


def _points(values: Sequence[float], top: float) -> list[tuple[float, float]]:
    step = WIDTH / max(1, len(values) - 1)
    return [(i * step, HEIGHT * (1 - min(1.0, value / top))) for i, value in enumerate(values)]


def _joined(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.2f}" for x, y in points)
