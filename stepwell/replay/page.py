"""The report of a replay as one page with plots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepwell.base.units import format_size
from stepwell.cache.reuse.outcome import Loss
from stepwell.replay.ledger import Played
from stepwell.replay.plots import (
    Layer,
    columns,
    figure,
    legend,
    line,
    round_bytes,
    round_up,
    shade,
    spread,
    stacked,
    table,
    tiles,
    times,
)
from stepwell.replay.report import Summary, quantiles
from stepwell.replay.shell import shell
from stepwell.replay.terminal import format_seconds, lines

FloatArray: TypeAlias = NDArray[np.float64]

KINDS = ("device", "host", "disk", "lost")
_BINS = 120
_CONVERSATIONS = 8
_TURNS = 120


def page(summary: Summary) -> str:
    """The whole document; it needs no network and no script."""
    mode = summary.course.mode
    parts = [
        f"<h1>Replay, {mode}</h1>",
        f"<p>{escape(lines(summary)[-1])}.</p>",
        _tiles(summary),
        _sources(summary),
        _over_time(summary),
        _waterfall(summary),
        _traffic(summary),
        _timeline(summary),
        _latency(summary),
        _figures(summary),
    ]
    return shell(f"Stepwell replay, {mode}", "\n".join(part for part in parts if part))


def format_tokens(count: float) -> str:
    """`1234567` → `1.2M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"


def _names(summary: Summary) -> list[tuple[str, str]]:
    names = ("device", "host", "disk", "recomputed") if summary.split else ("cached", "", "", "recomputed")
    return [(kind, name) for kind, name in zip(KINDS, names, strict=True) if name]


def _tiles(summary: Summary) -> str:
    hit = summary.admitted.prompt - summary.admitted.recomputed
    ttft, itl, rates = quantiles(summary.ttft), quantiles(summary.itl), summary.rates()
    figures = [
        (f"{summary.share(hit):.1%}", "of prompt tokens reused", f"bound {summary.share(summary.bound):.1%}"),
        (f"{summary.excess:.1%}", "excess prefill", "over the least that the bound needs"),
    ]
    if summary.excess_future is not None:
        figures.append(
            (f"{summary.excess_future:.1%}", "excess prefill", "of a cache of this size that knows the future")
        )
    if ttft:
        figures.append((format_seconds(ttft["p50"]), "to the first token", f"p99 {format_seconds(ttft['p99'])}"))
    if itl:
        figures.append((format_seconds(itl["p50"]), "between tokens", f"p99 {format_seconds(itl['p99'])}"))
    figures.append(
        (f"{rates['requests_per_s']:.2f}/s", "requests", f"{summary.requests:,} measured, {summary.failed} failed")
    )
    answers = f"{rates['answer_tokens_per_s']:,.0f} answer tokens/s"
    figures.append((format_tokens(rates["prompt_tokens_per_s"]) + "/s", "prompt tokens", answers))
    return tiles(figures)


def _sources(summary: Summary) -> str:
    parts = [
        f'<div class="{kind}" style="width:{100 * summary.share(tokens):.3f}%" title="{name} {summary.share(tokens):.2%}"></div>'
        for kind, (name, tokens) in zip(KINDS, summary.sources(), strict=True)
        if tokens
    ]
    tokens = dict(zip(KINDS, (t for _, t in summary.sources()), strict=True))
    named = [(kind, f"{name} {summary.share(tokens[kind]):.2%}") for kind, name in _names(summary)]
    return f'<h2>Where prompt tokens came from</h2><div class="bar">{"".join(parts)}</div>{legend(named)}'


def _over_time(summary: Summary) -> str:
    rows, end = summary.rows, summary.course.end_s
    if not rows or end <= 0:
        return ""
    count = min(_BINS, max(2, len(rows) // 8))
    sums = np.zeros((count, 5))
    for row in rows:
        at = min(count - 1, int(row.sent / end * count))
        sums[at] += (row.device, row.host, row.disk, row.bound, row.prompt)
    shares = _carried(sums[:, :4], sums[:, 4])
    layers = [Layer(k, k, shares[:, i].tolist()) for i, k in enumerate(KINDS[:3])]
    warm = shade(0, min(1.0, summary.start / end), "warm-up") if summary.start else ""
    drawn = stacked(layers, 1.0) + warm + line(Layer("bound", "bound", shares[:, 3].tolist()), 1.0)
    plot = figure(drawn, ("100%", "50%", "0%"), times(end), "share of prompt tokens reused, over time")
    names = [*((k, n) for k, n in _names(summary) if k != "lost"), ("bound", "bound")]
    return f"<h2>Hit over time</h2><p>Share of the prompt tokens sent at the time. Shaded: warm-up.</p>{plot}{legend(names)}"


def _carried(parts: FloatArray, wholes: FloatArray) -> FloatArray:
    """Each row's shares of its whole; where that is 0, those of the row before, and of the first that is not."""
    seen = np.flatnonzero(wholes)
    latest = np.maximum(np.searchsorted(seen, np.arange(len(wholes)), "right") - 1, 0)
    rows = seen[latest]
    return parts[rows] / wholes[rows, None]


def _waterfall(summary: Summary) -> str:
    """What recomputed tokens were lost to, each bar beginning where the one before ended."""
    lost = [(reason.value, tokens) for reason, tokens in summary.admitted.lost.items() if tokens]
    total = summary.admitted.recomputed
    if not lost or total <= 0:
        return ""
    mark = 100 * min(1.0, max(0, summary.admitted.prompt - summary.bound) / total)
    at, rows = 0.0, []
    for name, tokens in sorted(lost, key=lambda pair: (pair[0] != Loss.NEW, -pair[1])):
        width, kind = 100 * tokens / total, "needed" if name == Loss.NEW else "lost"
        rows.append(
            f'<span>{escape(name)}</span><div><i class="{kind}" style="left:{at:.2f}%;width:{max(width, 0.15):.2f}%"></i>'
            f'<u style="left:{mark:.2f}%"></u></div><b>{format_tokens(tokens)} · {summary.share(tokens):.2%}</b>'
        )
        at += width
    said = (
        "Every recomputed token and what it was lost to, with its share of all prompt tokens. The upright line is the least that"
        " the bound needs: what lies right of it is the excess."
    )
    return f'<h2>Why tokens were recomputed</h2><p>{said}</p><div class="fall">{"".join(rows)}</div>'


def _traffic(summary: Summary) -> str:
    end = summary.course.end_s
    plots = []
    for way, sizes in summary.traffic.ways:
        if not sum(sizes):
            continue
        parts = np.array_split(np.asarray(sizes, np.float64), min(_BINS, len(sizes)))
        rates = [float(part.mean()) / summary.traffic.seconds for part in parts]
        kind = KINDS[("device", "host", "disk").index(way.split()[-1])]
        top = round_bytes(max(rates))
        drawn = stacked([Layer(way, kind, rates)], top)
        labels = (f"{format_size(top)}/s", "0")
        plots.append(
            f"<div><h3>{escape(way)}: {format_size(sum(sizes))}</h3>{figure(drawn, labels, times(end, 3), way, 'low')}</div>"
        )
    if not plots:
        return ""
    return (
        f'<h2>Copies between tiers</h2><p>Bytes a second, warm-up included.</p><div class="many">{"".join(plots)}</div>'
    )


def _timeline(summary: Summary) -> str:
    """The prompts of some conversations, turn by turn."""
    chosen = _chosen(summary.rows)
    if not chosen:
        return ""
    plots = []
    for name, rows in chosen:
        top = round_up(max(row.prompt for row in rows))
        drawn = columns([(_turn(row), _parts(row)) for row in rows], top)
        label = f"prompts of {name}"
        fig = figure(
            drawn,
            (format_tokens(top), "0"),
            spread((f"{rows[0].sent:,.0f} s", f"{rows[-1].sent:,.0f} s")),
            label,
            "low",
        )
        plots.append(f"<div><h3>{escape(name)}</h3>{fig}</div>")
    said = "One bar a request, as high as its prompt: what came from which tier, and what was recomputed."
    return f'<h2>Conversations</h2><p>{said}</p>{legend(_names(summary))}<div class="many">{"".join(plots)}</div>'


def _chosen(rows: Sequence[Played]) -> list[tuple[str, list[Played]]]:
    """The conversations with the most requests."""
    by_name: dict[str, list[Played]] = defaultdict(list)
    for row in rows:
        by_name[f"{row.conversation}.{row.edition}" if row.edition else row.conversation].append(row)
    most = sorted(by_name.items(), key=lambda pair: (-len(pair[1]), pair[0]))[:_CONVERSATIONS]
    return [(name, found[-_TURNS:]) for name, found in most]


def _parts(row: Played) -> list[tuple[str, float]]:
    return list(zip(KINDS, (row.device, row.host, row.disk, row.recomputed), strict=True))


def _turn(row: Played) -> str:
    parts = f"{row.device:,} device + {row.host:,} host + {row.disk:,} disk + {row.recomputed:,} recomputed"
    wait = "" if row.ttft is None else f"; first token after {format_seconds(row.ttft)}"
    agent = f", stream {row.stream}" if row.stream else ""
    return f"turn {row.index}{agent} at {row.sent:,.1f} s: {row.prompt:,} tokens = {parts}{wait}" + (
        f"; {row.reason}" if row.reason else ""
    )


def _latency(summary: Summary) -> str:
    plots = [
        _histogram(name, values)
        for name, values in (("Time to the first token", summary.ttft), ("Between tokens", summary.itl))
    ]
    if not any(plots):
        return ""
    return (
        f'<h2>Latency</h2><p>Requests by seconds, on a logarithmic scale.</p><div class="many">{"".join(plots)}</div>'
    )


def _histogram(name: str, values: Sequence[float]) -> str:
    found = np.asarray([v for v in values if v > 0])
    if len(found) < 2 or found.min() == found.max():
        return ""
    counts, edges = np.histogram(np.log10(found), bins=40)
    bars = [
        (f"{format_seconds(10**a)} to {format_seconds(10**b)}: {n} requests", [("device", float(n))])
        for n, a, b in zip(counts, edges, edges[1:], strict=False)
    ]
    labels = [format_seconds(10 ** float(edges[i])) for i in (0, 20, 40)]
    said = ", ".join(f"{mark} {format_seconds(s)}" for mark, s in quantiles(values).items())
    plot = figure(columns(bars, float(counts.max())), (str(counts.max()), "0"), spread(labels), name, "low")
    return f"<div><h3>{name}: {said}</h3>{plot}</div>"


def _figures(summary: Summary) -> str:
    rows = [(name, f"{tokens:,}", f"{summary.share(tokens):.2%}") for name, tokens in summary.sources()]
    rows.append(("bound", f"{summary.bound:,}", f"{summary.share(summary.bound):.2%}"))
    said = "".join(f"<p>{escape(text)}</p>" for text in lines(summary))
    joint = (
        f"<p><code>{escape(summary.admitted.joint_line())}</code></p>" if any(summary.admitted.reasons.values()) else ""
    )
    settings = table(("setting", "value"), summary.course.settings)
    return f"<h2>Figures</h2>{table(('prompt tokens', 'count', 'share'), rows)}{said}{joint}<h2>Settings</h2>{settings}"
