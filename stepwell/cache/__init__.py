"""What is cached where, and what a request may reuse.

This package knows tokens, page and slot numbers, tiers, leases and ticks. It does not know tensors, files, threads, clocks or
requests' lives: time comes in as an argument, copies go out as `Move`s.

    tree        prefixes and where their bytes are       ranking     what goes next in each tier, and what is copied down first
    pool        free slots of one tier                    placement   where rungs stand, and the gap that a loss leaves
    survey      how far each leg reaches for a prompt     plan        how a request would start, and what it falls back to
    life        what a copy can be, and what may follow   account     the one place where that changes, with every sum
    leases      holds on what is cached                   directory   the one owner of all of it
    policy      what a loss costs: policies by name       tenants     what each tenant holds, and whose copies go first for that
    pins        what goes last, and until when            pinning     begin, renew and end pins
    admission   commit and settle                         content     publish what was computed, leave rungs
    shed        make room, copy down ahead of need        outcome     how an admission ended; tally: the counters
"""
