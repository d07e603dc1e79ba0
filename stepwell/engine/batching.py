"""From a step's plain data to the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.model.batch import Batch, Decodes, Prefill, States
from stepwell.ops.kernels import Kernels
from stepwell.sched.step import Cut, Step, Work


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch, and the index in the step of each work whose logits it asks for, in the logits' order.

    Behind those rows come, for each index of `scoring`, the rows of all its work's targets.
    """

    batch: Batch
    sampling: tuple[int, ...]
    scoring: tuple[int, ...] = ()


def inner_cuts(work: Work) -> list[Cut]:
    """Cuts before the last token of the work, ascending; a cut at its end is the live state after the pass."""
    end = work.start + len(work.tokens)
    return sorted((cut for cut in work.cuts if cut.position < end), key=lambda cut: cut.position)


def plan_batch(
    step: Step, images: Mapping[int, Sequence[States]], block: int, kernels: Kernels, device: torch.device
) -> Planned:
    """Lay the works end to end. `images[i]` receive the inner cuts of work i, in order."""
    works = step.works
    # slots in order, so that a full set of decodes is one slice of the live states
    decoding = sorted((i for i, w in enumerate(works) if len(w.tokens) == 1), key=lambda i: works[i].slot)
    filling = [i for i, w in enumerate(works) if len(w.tokens) > 1]
    prefills, first = [], len(decoding)
    for i in filling:
        prefills.append(_prefill(works[i], first, images.get(i, ()), kernels))
        first += len(works[i].tokens)
    order = [*decoding, *filling]
    last_row = _last_rows(order, works)
    sampling = tuple(i for i in order if works[i].sample is not None)
    scored = [(i, score) for i in order if (score := works[i].score) is not None]
    targets = [last_row[i] + 1 - len(works[i].tokens) + np.arange(len(score.targets)) for i, score in scored]
    asked = np.concatenate([np.array([last_row[i] for i in sampling], np.int64), *targets])
    positions = np.concatenate([np.arange(w.start, w.start + len(w.tokens)) for w in (works[i] for i in order)])
    write_from = np.repeat([works[i].write_from for i in order], [len(works[i].tokens) for i in order])
    pages = np.concatenate([_page_of_each(works[i], block) for i in order])
    kept = np.flatnonzero(positions >= write_from)
    batch = Batch(
        tokens=_long(np.concatenate([works[i].tokens for i in order]), device),
        positions=_long(positions, device),
        decodes=_decodes([works[i] for i in decoding], block, kernels, device),
        prefills=tuple(prefills),
        written=None if len(kept) == len(positions) else _long(kept, device),
        page=_long(pages[kept], device),
        offset=_long(positions[kept] % block, device),
        asked=_long(asked, device),
    )
    return Planned(batch, sampling, tuple(i for i, _ in scored))


def _prefill(work: Work, first: int, images: Sequence[States], kernels: Kernels) -> Prefill:
    count = len(work.tokens)
    return Prefill(
        first=first,
        count=count,
        slot=work.slot,
        start=work.start,
        cuts=tuple(cut.position - work.start for cut in inner_cuts(work)),
        images=tuple(images),
        attend=kernels.plan_prefill(work.pages, work.start, count),
    )


def _decodes(works: Sequence[Work], block: int, kernels: Kernels, device: torch.device) -> Decodes | None:
    if not works:
        return None
    slots = [w.slot for w in works]
    consecutive = slots[-1] - slots[0] == len(slots) - 1
    return Decodes(
        count=len(works),
        slots=slice(slots[0], slots[-1] + 1) if consecutive else torch.tensor(slots, device=device),
        attend=kernels.plan_decode([w.pages for w in works], [w.start + 1 for w in works], block),
    )


def _page_of_each(work: Work, block: int) -> Ints:
    positions = np.arange(work.start, work.start + len(work.tokens))
    pages: Ints = work.pages[positions // block]
    return pages


def _last_rows(order: Sequence[int], works: Sequence[Work]) -> dict[int, int]:
    """Row of each work's last token."""
    rows, end = {}, 0
    for i in order:
        end += len(works[i].tokens)
        rows[i] = end - 1
    return rows


def _long(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)
