"""The start of the half that owns tensors: loads the model, takes memory, compiles, records, measures. `build` is the entrance."""
