"""What is cached where, and what a request may reuse.

This package knows tokens, page and slot numbers, tiers, leases and ticks. It does not know tensors, files, threads, clocks or
requests' lives: time comes in as an argument, copies go out as `Move`s.

    here      tree         prefixes and where their bytes are        directory   the one owner of all of it
              life         the states of a copy                      account     changes of state, all sums, leases
              placement    where rungs are placed                    publish     what a step computed becomes findable; rungs
              copies       begin and end a copy between tiers        hints       pins, and prompts brought to the device early
              slots        free slots of a tier, pages of a request  clear       empty the cache, remove what is not trusted
              moves        what stores are asked to do               changes     what routers of a fleet are told
    reuse/    survey ▸ plan ▸ admission: from a prompt to its start; outcome says how it ended and why it was no more
    evict/    policy ▸ ranking ▸ make_room: what goes next, and what is dropped or copied down; pins and tenants change the order
    disk/     names, archive, learn, persist: what outlives the process
    external/ a store with an index of its own: what is asked of it, what it has, and what is copied into it
"""
