"""Triton kernels for decoding and for what surrounds library kernels in prefill. They need Triton and torch, nothing else.

Each function here is free-standing: tensors in, tensors out, no state of its own, no host synchronisation, no shape that
depends on data, so that all of them can be captured in a CUDA graph. `twins` holds each one's plain-torch twin; tests and
`bench/gpu_kernels.py` hold the two against each other.

Rules that all kernels share:

* Slots, pages and rows are int64. A padded row of a batch names a sacrificial slot and page that nobody reads.
* What lies beyond a sequence's end may be NaN; it is never read into a sum.
* Numbers that differ from batch to batch are not specialised: a kernel is compiled once, not again for multiples of 16.
* Sums run in a fixed order without atomics: the same inputs and tiles give the same bits.
"""
