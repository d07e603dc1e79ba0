"""How other engines cache hybrid models, as small models of their directories, to be compared with ours on one trace in one run.

Each knows what the peer finds at an admission, what it leaves behind, what it evicts, what its host tier holds and which loads it
makes. Lanes, clock, costs of compute and copies, and the scheduler (`engine`) are the same for all of them. What each leaves out of
the engine that it models stands in its docstring and in docs/replay.md.
"""
