"""From a `Step` to tensors, from a `Move` to copies; the process around them. Decides nothing.

This package knows models, arenas, processes and messages. It does not know HTTP, and it has no opinion on what to cache.
"""

from __future__ import annotations

import os

# Before torch loads its OpenMP: worker threads that spin at barriers turn a forward pass of 0.3 s into one of 30 s as soon as
# another process (a front end, say) wants the same cores. A user's own setting stands.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
