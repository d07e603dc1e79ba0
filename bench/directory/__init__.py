"""What `bench/admission.py` measures: the directory alone, its memory, a trace through it and through the whole engine loop, and
the cache managers of other engines on the same trace. Times are of the processor, of the one thread that decides."""
