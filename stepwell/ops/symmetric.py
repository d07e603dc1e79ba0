"""Sums over the GPUs of one host by kernels that read and write each other's memory, without a library call for each.

`symm_mem.two_shot_all_reduce_` of torch: each rank sums its share of the values and writes it to all others, so that every rank gets the
same bits. Measured on two H200s, inside graphs: 6.1 µs for 4 KiB and 10.1 for 1 MiB, where NCCL takes 10.6 and 17.9, and its one-shot
twin 6.2 and 13.3. It needs peer-to-peer access, and no multicast.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from stepwell.ops.ranks import ProcessRanks

MOST = 4 << 20
"""Bytes. Beyond, NCCL is as fast."""
_ALIGNED = 16


class SymmetricRanks(ProcessRanks):
    """The same processes, with memory that all can reach."""

    __slots__ = ("_group", "_memory")

    def __init__(self, device: torch.device) -> None:
        """Waits for the other ranks. Raises RuntimeError where they cannot reach each other's memory."""
        super().__init__(device)
        assert dist.group.WORLD is not None
        self._group = dist.group.WORLD.group_name
        self._memory = symmetric.empty(MOST, dtype=torch.uint8, device=device)
        symmetric.rendezvous(self._memory, self._group)
        self.name = f"sums over ranks: in each other's memory, {self.name.rpartition(' ')[2]} beyond 4 MiB"

    def sum(self, x: Tensor) -> Tensor:
        """What is returned is good until the next call."""
        if self._apart or x.nbytes > MOST or x.nbytes % (_ALIGNED * self.count):
            return super().sum(x)
        shared = self._memory[: x.nbytes].view(x.dtype).view(x.shape)
        shared.copy_(x)
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group)
        return shared
