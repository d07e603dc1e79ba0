"""A store below the native tiers that has an index of its own, such as LMCache.

The directory does not know what such a store holds: others write to it, and it drops what it likes. So the store is asked anew for each
prompt that might gain from it, and what it finds is leased until the load has ended:

    question ──▶ Query ──▶ store ──▶ QueryAnswer ──▶ ExternalHit ──▶ plan (an option like any other) ──▶ load ──▶ published on the device
    a finished answer ──▶ UnstoredPath ──▶ write_behind: chunks and images that the store is not known to have are copied into it

    query         what is asked for a prompt, what is answered, and what a plan is given of that
    ledger        what the store is believed to hold, what is being copied into it, and which leases have ended
    write_behind  copies into it, beside everything else
"""
