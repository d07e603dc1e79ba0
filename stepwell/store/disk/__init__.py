"""The disk tier's bytes: records in append-only segments, and an index of them that outlives the process.

    store ──▶ writer, space ──▶ segments, record              (bytes)
      │           └─▶ ledger ──▶ manifest                     (which records there are, by name)
      └──▶ reader ──▶ ledger (`Places`)                       (where each slot's page lies)

This package knows slots, names, files and checksums. It does not know tokens, prompts, tensors or what is worth keeping: the directory
decides, and hands over `stepwell.cache.moves.Task`s. What cannot be written or read is a report with its reason, never a wrong byte.
"""
