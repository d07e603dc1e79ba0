"""The names under which one model is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ANY = "*"


@dataclass(frozen=True, slots=True)
class ServedNames:
    """`first` is the one that answers show; `others` are taken as well, and every name where `any_name`."""

    first: str
    others: tuple[str, ...] = ()
    any_name: bool = False

    @classmethod
    def of(cls, given: Sequence[str], model: str) -> ServedNames:
        """What `--served-model-name` says; a name of `*` takes every name."""
        names = [name for name in dict.fromkeys(given) if name != ANY] or [model]
        return cls(names[0], tuple(names[1:]), ANY in given)

    @property
    def all(self) -> tuple[str, ...]:
        return (self.first, *self.others)

    def accept(self, name: str | None) -> bool:
        """Whether a call that names this model is for this server; None names none."""
        return name is None or self.any_name or name in self.all
