"""The backend for CUDA: own Triton kernels, library kernels for prompts where they are installed, and graphs for decode.

backend    places weights, plans passes, captures graphs
forward    the operations of a pass, on rows of decodes and of prompts
plans      a pass's arrays, uploaded in one copy
prompts    attention and delta rule of prompts: FlashAttention-3 and fla-core, or torch alone
graphs     decode passes captured by number of rows
"""
