"""The directory's side of the disk, which outlives the process: names instead of tokens, what is written, what is found again.

names ▸ archive        learn: the tree learns what an earlier process left        persist: what is worth a write
"""
