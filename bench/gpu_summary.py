"""The figures of `bench/gpu.py` under the names that they have always had, and beside them what they must and should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table


def at(value: Any, *path: str) -> Any:
    """What stands under these names, one inside the other; None where there is nothing."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def summary(parts: dict[str, Any]) -> dict[str, Any]:
    """Figures by name. What has not been measured is None."""
    out: dict[str, Any] = {
        name: {} for name in ("decode_ms", "prefill_tok_s", "resume_s", "agents", "host", "kernel_ms")
    }
    for shape in ("M", "D"):
        out["decode_ms"][shape] = {n: at(parts, shape, "decode", n, "itl_ms_p50") for n in ("1", "8", "64")}
        out["prefill_tok_s"][shape] = {n: at(parts, shape, "prefill", n, "tok_s") for n in ("16384", "102400")}
        host = at(parts, f"{shape}-small", "resume", "pushed_out", "ttft_s")
        out["resume_s"][shape] = {n: at(parts, shape, "resume", n, "ttft_s") for n in ("cold", "device")} | {
            "host": host
        }
        for part, name in ((shape, f"{shape}_ample"), (f"{shape}-small", f"{shape}_small")):
            out["agents"][name] = at(parts, part, "agents")
        out["host"][shape] = {n: at(parts, "loop", shape, n) for n in ("1", "64")}
        kernels = at(parts, "profile", "profile_ms", shape) or {}
        out["kernel_ms"][shape] = {n: at(kernels, n, "operations") for n in ("decode 8", "prompt 16384")}
    for name in ("restore_over_link", "demote_over_link"):
        out[name] = at(parts, "copies", name)
    out["saves"] = {n: at(parts, "copies", "D", n) for n in ("decode_slowed_by", "saves_gib_s")}
    out["over_plan"] = {n: at(parts, n, "memory", "over_plan") for n in ("M", "D", "M-small", "D-small")}
    out["distinct_experts"] = at(parts, "profile", "distinct_experts")
    out["flips_deterministic"] = flips(parts, "D-deterministic", "M-deterministic", share=False)
    out["flip_share"] = flips(parts, "trained", share=True)
    out["replay"] = {n: at(parts, "replay", n) for n in ("points_apart", "tiers_apart", "ttft_p50_over")}
    return out


def flips(parts: dict[str, Any], *names: str, share: bool) -> float | None:
    """Answers that differ cold and resumed, from the device or from host; `share` of all that were asked."""
    found = [at(parts, name, "exact", asking) for name in names for asking in ("device", "host")]
    told = [one for one in found if isinstance(one, dict)]  # older files have tokens there
    differ, asked = sum(one["differ"] for one in told), sum(one["differ"] + one["identical"] for one in told)
    return (differ / asked if share else differ) if asked else None


@dataclass(frozen=True, slots=True)
class Target:
    """A figure's path in the summary; what it must be, should be, and is with vLLM 0.26 there, which is None where nothing says."""

    path: tuple[str, ...]
    must: float
    aim: float | None
    vllm: float | None
    most: bool = True

    def judged(self, value: float | None) -> str:
        """In one word."""
        if value is None:
            return "not measured"
        sign = 1 if self.most else -1
        if self.aim is not None and sign * value <= sign * self.aim:
            return "[green]aim"
        return "[green]must" if sign * value <= sign * self.must else f"[red]{value / self.must - 1:+.1%}"


def _targets(shape: str, *rows: tuple[Any, ...]) -> list[Target]:
    return [Target((path[0], shape, *path[1:]), must, aim, vllm, most) for path, must, aim, vllm, most in rows]


TARGETS = [
    *_targets("M", (("decode_ms", "1"), 3.2, 2.2, 4.28, True), (("decode_ms", "8"), 7.0, 6.0, 7.8, True),
              (("decode_ms", "64"), 20, 18.5, 20.3, True), (("prefill_tok_s", "16384"), 48e3, 60e3, 43.9e3, False),
              (("prefill_tok_s", "102400"), 37e3, 42e3, 36.6e3, False), (("resume_s", "device"), 0.10, 0.08, 0.29, True),
              (("resume_s", "host"), 0.16, 0.10, 0.39, True)),
    *_targets("D", (("decode_ms", "1"), 3.0, 2.6, 3.70, True), (("decode_ms", "8"), 3.7, 3.0, 4.14, True),
              (("decode_ms", "64"), 7.5, 6.6, 7.58, True), (("prefill_tok_s", "16384"), 60e3, 67e3, 59.4e3, False),
              (("prefill_tok_s", "102400"), 41e3, 43e3, 40.4e3, False), (("resume_s", "device"), 0.075, 0.055, 0.30, True),
              (("resume_s", "host"), 0.13, 0.095, 0.30, True)),
    *(Target(("agents", *path), must, aim, vllm, most) for path, must, aim, vllm, most in (
        (("M_ample", "wall_s"), 27, 21, 30.2, True), (("M_ample", "ttft_p50_s"), 0.5, 0.3, 0.47, True),
        (("M_ample", "itl_p99_ms"), 110, 70, 205, True), (("M_ample", "cached"), 0.82, 0.825, 0.773, False),
        (("M_small", "wall_s"), 40, 27, 59.0, True), (("M_small", "ttft_p50_s"), 5.5, 3, 6.4, True),
        (("D_ample", "wall_s"), 19.0, None, 19.0, True), (("D_small", "wall_s"), 27.3, None, 27.3, True))),
    Target(("restore_over_link",), 0.95, 0.98, 0.97, False), Target(("demote_over_link",), 0.93, 0.96, 0.97, False),
    Target(("saves", "decode_slowed_by"), 0.03, None, None), Target(("saves", "saves_gib_s"), 40, None, None, False),
    Target(("flips_deterministic",), 0, None, None), Target(("flip_share",), 0.01, None, None),
    Target(("replay", "points_apart"), 1, None, None), Target(("replay", "tiers_apart"), 1, None, None),
    Target(("replay", "ttft_p50_over"), 0.25, None, None),
]  # fmt: skip
"""Of D's agents only that vLLM is not faster."""


def table(told: dict[str, Any]) -> Table:
    """Every target, then garbage where answers were not the model's."""
    found = Table("figure", "value", "must", "aim", "vLLM", "")
    for target in TARGETS:
        value = at(told, *target.path)
        figures = (value, target.must, target.aim, target.vllm)
        found.add_row(" ".join(target.path), *(_text(figure) for figure in figures), target.judged(value))
    for path, share in garbage(told.get("parts", {})):
        found.add_row(path, _text(share), "0", "", "", "[red]garbage")
    return found


def garbage(value: Any, path: str = "") -> list[tuple[str, float]]:
    """Every run with answers that the model would not give."""
    if not isinstance(value, dict):
        return []
    own = [(path, value["garbage"])] if value.get("garbage") else []
    return own + [one for name, inner in value.items() for one in garbage(inner, f"{path} {name}".strip())]


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
