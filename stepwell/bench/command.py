"""`stepwell bench`: its commands."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.extras import expect_extra
from stepwell.base.shapes import ModelShape, Widths
from stepwell.bench.sizes import Sizes
from stepwell.replay.cost import CostModel
from stepwell.replay.profile import Profile, write_profile
from stepwell.server.commands import flags

bench_app = typer.Typer(no_args_is_help=True, add_completion=False, help="Measure this machine.")


@bench_app.callback()
def bench() -> None:
    """Measure this machine."""


@bench_app.command()
def calibrate(
    model: Annotated[str, typer.Argument(help="Directory of a checkpoint, or the name of one on the Hub.")],
    out: Annotated[Path, typer.Option(help="Write the profile here.", metavar="FILE")] = Path("profile.toml"),
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto: as in config.json.")] = "auto",
    device_memory: flags.DeviceMemory = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 32,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens in one forward pass.")] = 8192,
    disk_dir: Annotated[Path | None, typer.Option(help="Folder on the disk that a disk tier would use.")] = None,
    longest: Annotated[int, typer.Option(help="Longest prompt to measure, in tokens.", min=256)] = 4096,
    rounds: Annotated[int, typer.Option(help="Measure so often, and take the best.", min=1)] = 3,
) -> None:
    """Measure prefill, decode and copies of MODEL on this machine, and write a profile for `replay` and `plan`.

    Takes about a minute for a small model. Run it on a quiet machine.

    Example:

        stepwell bench calibrate ./model --out mine.toml && stepwell replay trace.jsonl --profile mine.toml
    """
    errors = Console(stderr=True)
    engine = {"device": device, "dtype": dtype, "max_num_seqs": max_num_seqs, "host_memory": 0}
    engine |= {"max_num_batched_tokens": max_num_batched_tokens}
    engine |= {} if device_memory is None else {"device_memory": device_memory}
    try:
        expect_extra("engine", "stepwell bench calibrate")
        with errors.status("starting the engine") as status:
            profile = measured(model, engine, Sizes.up_to(longest, rounds), disk_dir, status.update)
        write_profile(profile, out)
    except StepwellError as error:
        errors.print(f"stepwell bench: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(2) from error
    console = Console()
    console.print(_table(profile))
    console.print(f"written to {out}", highlight=False)


def measured(
    model: str, engine: dict[str, Any], sizes: Sizes, disk_dir: Path | None, say: Callable[[str], None]
) -> Profile:
    """The profile of `model` here. Raises StepwellError."""
    import torch

    from stepwell.bench import calibrate as measuring
    from stepwell.engine.build import build_engine
    from stepwell.engine.config import engine_config
    from stepwell.engine.process.serving import build

    shape = _shape(Path(model))
    config = engine_config({"model": model, **engine})
    loop, facts = build(build_engine, config)
    fitting = sizes.within(facts.max_model_len, config.max_num_seqs)
    costs = measuring.measure_compute(loop, facts.vocab_size, fitting, CostModel(), say, WallClock())
    loop.end(0.0)
    cuda = engine["device"] == "cuda" or (engine["device"] == "auto" and torch.cuda.is_available())
    wide = 4 if engine["dtype"] == "float32" or (engine["dtype"] == "auto" and not cuda) else 2
    geometry = shape.geometry(widths=Widths(wide, wide, 4))
    say("copies")
    costs = measuring.measure_copies(geometry, "cuda" if cuda else "cpu", fitting, costs)
    say("disk")
    costs = measuring.measure_disk(disk_dir, fitting, costs)
    where = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads of {platform.machine()}"
    costs = replace(costs, kv_bytes_per_token=shape.kv_token_bytes(wide))
    source = f"Measured by `stepwell bench calibrate` on {where}, torch {torch.__version__}; copy_latency_s is assumed."
    return Profile(Path(model).resolve().name, source, geometry.image_bytes, costs)


def _shape(model: Path) -> ModelShape:
    try:
        return ModelShape.from_config(json.loads((model / "config.json").read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {model / 'config.json'}: {error}; give the directory of a checkpoint"
        ) from error


def _table(profile: Profile) -> Table:
    table = Table("rate", "value", title=f"Profile of {profile.name}", title_justify="left")
    table.columns[1].justify = "right"
    table.add_row("image_bytes", f"{profile.image_bytes:,}")
    for name, value in asdict(profile.costs).items():
        table.add_row(name, f"{value:,.0f}" if value >= 100 else f"{value:.3g}")
    return table
