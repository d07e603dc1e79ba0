"""Steps on a real model: lays a step out as arrays, runs the pass, adjusts logits, draws tokens. `torch_runner` is the entrance."""
