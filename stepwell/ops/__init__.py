"""Tensor arithmetic of one layer: attention over pages, the gated delta rule, convolution, experts, sampling.

This package knows shapes and numerics. It does not know requests, caches, weights' names or where a tensor came from.
"""
