"""Which request computes what next.

This package knows requests, queues, token budgets and steps as plain data. It does not know tensors, sockets or wall time: a
`Runner` computes, a `Mover` copies, a `Clock` tells the time, and the same scheduler serves, simulates and is tested.

    request   what a caller asks and hears      job      a request in each state of its life
    step      one forward pass as data          admit    from waiting to running, by way of a load
    build     the next step                     finish   from a step's result to events
    loop      the engine loop
"""
