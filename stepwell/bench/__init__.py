"""What this machine can do, measured: `stepwell bench`.

This package knows the engine from outside and the stores' copiers. It does not know HTTP or what is worth caching.

    sizes   what is measured      calibrate   the measuring      fit   seconds as the rates of a cost model      command   the commands
"""
