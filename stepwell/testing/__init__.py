"""What it takes to test an engine of this kind: faults to inject, movers that obey, a checkpoint whose state matters.

Part of the package so that whoever builds on Stepwell can test against the same things. It knows the protocols of
`sched`, and how a store joins its ranks; it does not know bytes or the engine, and imports without torch.
"""
