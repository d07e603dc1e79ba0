"""SGLang (0.5.23): a radix tree over two pools, one for KV and one for states, each with its own least-recently-used order.

Memory is split once: 0.9 parts of states to one of KV (`--mamba-full-memory-ratio`). Pages of 64 tokens. A running request holds
three states: its own and two to track with. Each piece of a prompt leaves one at its last page boundary, or instead at the point
where the prompt left cached KV that has no state (the branching point). Answers keep one every 256 tokens; what lies past the last
state is dropped at the end. Below the device HiCache in `write_through`: KV and states are copied to host as they come, into two
pools of the same proportion, and come back together.

Left out: prefill that pauses decoding (ours runs both in one pass), loads that run layer by layer beside the compute (here a request
waits for its load), write-back and selective writing, retraction (the pages of the answer are taken at admission), speculation. Its
own host tier has no load that fails in the model: `--peer-failure-rate` changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.base.units import ceil_div
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.job import Job, Load, Past, Start
from stepwell.replay.peers.nodes import Node
from stepwell.replay.peers.radix import Radix
from stepwell.replay.runner import Links

PAGE = 64
STATES_TO_KV = 0.9
TRACK = 256
LIVE_STATES = 3


@dataclass(slots=True)
class _Held:
    """node         the deepest that the request locks     private, states  pages and states beside the tree
    branch       pages of the prompt after which to leave a state on the way; 0: nowhere
    from_tokens  where the next piece of the prompt begins
    """

    node: Node
    private: int
    branch: int
    from_tokens: int
    states: int = LIVE_STATES


class SglangCache:
    """See the module."""

    __slots__ = (
        "_held",
        "_image_bytes",
        "_links",
        "_page_bytes",
        "_past",
        "_sizes",
        "_tree",
        "left",
        "page",
        "skipped",
    )

    def __init__(self, sizes: MachineSizes, kv_bytes_per_token: int, links: Links) -> None:
        self.page = PAGE
        self._page_bytes = PAGE * kv_bytes_per_token
        self._image_bytes = sizes.rung_tokens * kv_bytes_per_token
        device, host = _pools(sizes.device_tokens, sizes.rung_tokens), _pools(sizes.host_tokens, sizes.rung_tokens)
        self._sizes = *device, *host
        self._tree = Radix(*self._sizes)
        self._links = links
        self._past = Past()
        self._held: dict[str, _Held] = {}
        self.left = self.skipped = 0

    def fits(self, job: Job) -> bool:
        return ceil_div(job.total, PAGE) <= self._sizes[0] and self._sizes[1] > LIVE_STATES

    def admit(self, job: Job) -> Start | None:
        tree = self._tree
        path = tree.match(job.keys, job.usable // PAGE)
        reach = _reach(path)
        hit = next((n for n in reversed(path) if n.state and n.end <= reach), tree.root)
        deepest = next((n for n in reversed(path) if n.state or n.state_low), tree.root)
        if deepest.end <= hit.end:
            deepest = hit
        absent = [n for n in deepest.up() if not n.kv]
        pages = sum(len(n.keys) for n in absent)
        brings_state = deepest is not tree.root and not deepest.state
        tree.lock(deepest)
        private = ceil_div(job.total, PAGE) - deepest.end
        if not tree.take(private + pages, LIVE_STATES + brings_state):
            tree.unlock(deepest)
            return None
        for node in reversed(absent):
            tree.revive(node)
        if brings_state:
            tree.set_state(deepest)
        tree.touch(deepest)
        end = path[-1].end if path else 0
        self._held[job.id] = _Held(deepest, private, end if end > deepest.end else 0, deepest.end * PAGE)
        load = Load(pages * self._page_bytes, self._image_bytes * brings_state) if pages or brings_state else None
        return self._start(job, deepest.end, hit.end, reach, end, load)

    def _start(self, job: Job, boundary: int, hit: int, reach: int, end: int, load: Load | None) -> Start:
        lost = self._past.lost(job, PAGE, boundary * PAGE, end * PAGE, None, 0)
        reason = Reason.TOO_SHORT if job.usable < PAGE else Reason.NO_RUNG if end > boundary else Reason.COMPLETE
        host = boundary - min(boundary, reach) if load else 0
        tier = None if not boundary else Tier.HOST if load and load.image_bytes else Tier.DEVICE
        return Start(boundary * PAGE, hit * PAGE, host * PAGE, tier, reason, tuple(lost), load)

    def retreat(self, job: Job, start: Start, reason: Reason) -> Start:
        return start

    def chunk_end(self, job: Job, most: int) -> int:
        end = job.computed + most
        return job.prompt if end >= job.prompt else max(job.computed, end // PAGE * PAGE)

    def computed(self, job: Job) -> None:
        held = self._held[job.id]
        start, end = held.from_tokens, job.computed
        if job.decodes or end <= start:
            return
        held.from_tokens = end
        last = start + (end - start) // PAGE * PAGE
        at = held.branch if start < held.branch * PAGE < last else last // PAGE
        if at > held.node.end:
            self._leave(job, held, at, spare=False)

    def _leave(self, job: Job, held: _Held, at: int, spare: bool) -> None:
        """KV and state up to page `at` go into the tree; another slot takes the place of the state's, unless it is `spare`."""
        tree = self._tree
        self._past.note(job.keys[held.node.end : at])
        node, taken = tree.insert(job.keys, at)
        covered = at - held.node.end
        held.private -= covered
        tree.free += covered - taken  # what the tree had already is freed
        tree.lock(node)
        tree.unlock(held.node)
        held.node = node
        if not node.state:
            kept = spare or tree.take(0, 1)
            self.left += kept
            self.skipped += not kept
            if kept:
                self._past.note_state(job.keys[at - 1])
                node.state = True
                held.states -= spare
        pages, image = tree.copy_down(node)
        if pages or image:
            size = pages * self._page_bytes + image * self._image_bytes
            self._links.send((Tier.DEVICE, Tier.HOST), size, images=image)

    def finish(self, job: Job) -> None:
        held = self._held[job.id]
        at = (job.computed // TRACK) * TRACK
        if at > job.prompt and at // PAGE > held.node.end:
            self._leave(job, held, at // PAGE, spare=True)
        del self._held[job.id]
        self._tree.unlock(held.node)
        self._tree.free += held.private
        self._tree.free_states += held.states

    def check(self) -> None:
        """Raise AssertionError unless all memory is accounted for."""
        private = sum(held.private for held in self._held.values())
        self._tree.check(private, sum(held.states for held in self._held.values()), self._sizes)


def _pools(tokens: int, rung_tokens: int) -> tuple[int, int]:
    """Pages of KV and slots for states that `tokens` of memory are split into."""
    kv = tokens / (1 + STATES_TO_KV)
    return int(kv) // PAGE, int((tokens - kv) / rung_tokens)


def _reach(path: list[Node]) -> int:
    """Pages from the root on whose KV is on the device."""
    end = 0
    for node in path:
        if not node.kv:
            break
        end = node.end
    return end
