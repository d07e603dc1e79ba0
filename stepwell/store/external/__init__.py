"""The bytes of an external store: objects that vouch for themselves, what any such store must do, and the threads that ask it.

    objects   one chunk or image as bytes: a header of our own, then pages
    backend   what a store must do, blocking as long as it likes; one in memory
    mover     threads beside the engine: lookups, loads and copies into the store, each with a deadline
    joint     the stores of all ranks as one
    route     one mover out of two
    lmcache   LMCache's storage manager as a backend

This package knows slots, names and bytes. It does not know prompts, or what is worth storing.
"""
