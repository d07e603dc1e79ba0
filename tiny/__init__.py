"""How `stepwell-tiny` is made: a hybrid of 8 million parameters that needs its KV and its recurrent state, trained in minutes.

    python -m tiny.corpus --gsm8k DIR --out tiny-corpus      documents, tokenizer, token file (CPU, minutes)
    python -m tiny.train --corpus tiny-corpus --out DIR      training (one GPU, five minutes), ends with the checks of `tiny.judge`

It does not know the engine: what it writes is a checkpoint in the published names of Qwen3.5, for any program that serves those.
"""
