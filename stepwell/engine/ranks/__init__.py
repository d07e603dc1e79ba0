"""Tensor parallelism: one directory and one loop in the engine's process, and a process for each rank that owns bytes.

                                        ┌─ orders ─▶ rank 0  arenas, live states, part of the model, part of each disk record ─┐ sums,
    loop ── RanksRunner ── RankProcesses ─ orders ─▶ rank 1                                                                    │ columns
         ── RanksMover  ──              └─ orders ─▶ …         ────────────────────────────────────────────────────────────────┘
              ◀── answers: rank 0's results, every rank's reports       Watch ◀── signs of life, digests, failures

Every rank gets the same orders in the same order and decides nothing: a page, slot or chunk has one number on all ranks. A copy has ended
once all ranks have reported it, and is good if it was on all. The first rank that ends, falls silent, fails or computes something else
ends them all.
"""
