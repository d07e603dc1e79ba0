"""The routes of the server, but for those of `messages`, `responses` and `batches`: which call ends where.

`calls.py` has those that generate; `cache.py` and `hints.py` those about the cache; `peers.py` those that probes of other engines ask.
"""
