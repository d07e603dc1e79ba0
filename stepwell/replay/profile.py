"""Profiles: what steps and copies cost on one machine with one model, in a TOML file.

    name = "…"            source = "where the numbers come from"
    image_bytes = …       bytes of one rung's image, of one rank
    [cost]                the fields of CostModel

Some come with the package; `stepwell bench calibrate` writes one for the machine at hand.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_div
from stepwell.replay.cost import CostModel

DEFAULT = "qwen3.5-397b-a17b-h200x4"
_MOST_BYTES = 1 << 20
_WHOLE = frozenset({"kv_bytes_per_token"})


@dataclass(frozen=True, slots=True)
class Profile:
    """See the module. `image_bytes` 0: a model without recurrent layers."""

    name: str
    source: str
    image_bytes: int
    costs: CostModel

    @property
    def rung_tokens(self) -> int:
        """Memory of one rung, as tokens of KV."""
        return max(1, ceil_div(self.image_bytes, self.costs.kv_bytes_per_token))


def profile_names() -> list[str]:
    """Those that come with the package."""
    return sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml"))


def load_profile(name: str) -> Profile:
    """A profile by its name, or from a file. Raises ConfigError naming the field at fault."""
    if name in profile_names():
        return _parse((_folder() / f"{name}.toml").read_text("utf-8"), name)
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"--profile {name!r} is neither a file nor one of {', '.join(profile_names())}")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB: that is no profile")
        return _parse(data.decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the profile {path}: {error}") from error


def write_profile(profile: Profile, path: Path) -> None:
    """Write it as TOML. Raises ConfigError where that fails."""
    lines = [f"name = {json.dumps(profile.name)}", f"source = {json.dumps(profile.source)}"]
    lines += [f"image_bytes = {profile.image_bytes}", "", "[cost]"]
    lines += [f"{name} = {value!r}" for name, value in asdict(profile.costs).items()]
    try:
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the profile {path}: {error}") from error


def _folder() -> Any:
    return files("stepwell.replay") / "profiles"


def _parse(text: str, where: str) -> Profile:
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from error
    cost = told.get("cost", {})
    known = {field.name for field in fields(CostModel)}
    if not isinstance(cost, dict) or set(cost) - known:
        raise ConfigError(f"{where}: [cost] is a table that may hold {', '.join(sorted(known))}, nothing else")
    for name, value in cost.items():
        if type(value) is not int and (type(value) is not float or name in _WHOLE):
            raise ConfigError(f"{where}: {name} must be a {'whole ' if name in _WHOLE else ''}number, not {value!r}")
    image = told.get("image_bytes")
    if type(image) is not int or not 0 <= image < 1 << 50:
        raise ConfigError(f"{where}: image_bytes must be a whole number of bytes, not {image!r}")
    return Profile(str(told.get("name", where)), str(told.get("source", "")), image, CostModel(**cost))
