"""A store below the native tiers that has an index of its own, such as LMCache.

The directory does not know what such a store holds: others write to it, and it drops what it likes. So each prompt that might gain from
it asks, and the answer is leased until the load has ended:

    question ──▶ store ──▶ answer ──▶ offer ──▶ plan (an option like any other) ──▶ load ──▶ published on the device
    a finished answer ──▶ backlog ──▶ behind: chunks and images that the store is not known to have are copied into it

    offer     what is asked, what is answered, and what a plan is given of that
    question  what to ask for a prompt
    ledger    what the store is believed to hold, what is being written to it, and the leases to be let go
    behind    copying into it, beside everything else
"""
