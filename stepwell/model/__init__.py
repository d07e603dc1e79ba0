"""The decoders: their configuration, their weights by published name, and one forward pass over a mixed batch.

This package knows layers and tensors. It does not know requests, steps, pages' owners or samplers.
"""
