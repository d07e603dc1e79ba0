"""Traces played through the real cache and scheduler on a clock of their own.

This package knows conversations, block ids, when requests are sent, and what a step or a copy would cost. It does not
know tensors, HTTP or how to schedule: it drives the same loop that serves.

    trace, formats   conversations, and the files they come in     lanes      who sends what when
    synthetic        conversations made up to shape                cost       seconds of a step and of a copy
    text             block ids as tokens                           runner     the machine that only lets time pass
    bound            what an infinite cache would reuse            simulate, report, command
"""
