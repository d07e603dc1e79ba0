"""The result of `stepwell plan` as one page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape

from stepwell.base.units import format_size
from stepwell.replay.plots import HEIGHT, WIDTH, figure, legend, path, round_bytes, round_up, spread, table, tiles
from stepwell.replay.plots import LINES as KINDS
from stepwell.replay.policies import titled
from stepwell.replay.profile import Profile
from stepwell.replay.shell import shell
from stepwell.replay.sweep import Point
from stepwell.replay.terminal import format_seconds


def plan_page(points: Sequence[Point], chosen: Point, profile: Profile, settings: Sequence[tuple[str, str]]) -> str:
    """The whole document: hit and time to first token against device memory, a line for each policy and size of what lies below."""
    kv = profile.costs.kv_bytes_per_token
    sizes = (
        f"{chosen.policy}, {format_size(chosen.device_tokens * kv)} device, {format_size(chosen.host_tokens * kv)} host"
    )
    body = [
        f"<h1>Memory plan, {escape(profile.name)}</h1>",
        tiles(
            [
                (f"{chosen.hit:.1%}", "reused at the knee", sizes),
                (f"{chosen.bound:.1%}", "bound", "a cache without limits"),
                (format_seconds(chosen.ttft_p50), "to the first token", f"p99 {format_seconds(chosen.ttft_p99)}"),
            ]
        ),
        "<h2>Share of prompt tokens reused, by device memory</h2>",
        _curves(points, chosen, kv, lambda p: p.hit, max(p.bound for p in points), lambda v: f"{v:.0%}"),
        "<h2>Time to the first token, median</h2>",
        _curves(points, chosen, kv, lambda p: p.ttft_p50, max(p.ttft_p50 for p in points), format_seconds),
        "<h2>Figures</h2>",
        _table(points, kv),
        f"<h2>Profile</h2><p>{escape(profile.source)}</p>",
        "<h2>Settings</h2>",
        table(("setting", "value"), settings),
    ]
    return shell("Stepwell plan", "\n".join(body))


def _curves(
    points: Sequence[Point],
    chosen: Point,
    kv: int,
    value: Callable[[Point], float],
    top: float,
    written: Callable[[float], str],
) -> str:
    """One line for each policy and size of host and disk; the knee is ringed."""
    lines: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for p in points:
        lines[p.policy, p.host_tokens, p.disk_tokens].append(p)
    several = len({p.policy for p in points}) > 1
    quarter = round_bytes(max(p.device_tokens for p in points) * kv / 4)
    widest, top = 4 * quarter / kv, round_up(top)
    drawn, names = [], []
    for i, ((policy, host, disk), found) in enumerate(lines.items()):
        kind = KINDS[i % len(KINDS)] + (" dashed" if i // len(KINDS) % 2 else "")
        places = [
            (p.device_tokens / widest, min(1.0, value(p) / top)) for p in sorted(found, key=lambda p: p.device_tokens)
        ]
        drawn.append(path(places, kind) + "".join(_dot(x, y, kind) for x, y in places))
        below = f"host {format_size(host * kv)}" + (f", disk {format_size(disk * kv)}" if disk else "")
        names.append((kind, f"{titled(policy)}, {below}" if several else below))
    drawn.append(_dot(chosen.device_tokens / widest, min(1.0, value(chosen) / top), "knee"))
    labels = spread([format_size(quarter * i) for i in range(5)])
    return figure("".join(drawn), (written(top), written(top / 2), written(0.0)), labels, "curves") + legend(names)


def _dot(x: float, y: float, kind: str) -> str:
    """A point that keeps its shape however the plot is stretched: a line of no length with round ends."""
    at = f"{x * WIDTH:.1f} {HEIGHT * (1 - y):.2f}"
    return f'<path class="dot {kind}" d="M{at} L{at}"/>'


def _table(points: Sequence[Point], kv: int) -> str:
    head = (
        "policy",
        "device",
        "host",
        "disk",
        "hit",
        "from device",
        "from host",
        "from disk",
        "excess",
        "TTFT p50",
        "p99",
    )
    rows = [
        [
            titled(p.policy),
            *(format_size(tokens * kv) for tokens in (p.device_tokens, p.host_tokens, p.disk_tokens)),
            *(f"{share:.2%}" for share in (p.hit, p.device, p.host, p.disk, p.excess)),
            format_seconds(p.ttft_p50),
            format_seconds(p.ttft_p99),
        ]
        for p in points
    ]
    return table(head, rows)
