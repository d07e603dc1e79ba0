"""The backend for CUDA: own Triton kernels, library kernels for prompts where they are installed, and graphs for decode.

backend    places weights, plans passes, captures graphs
forward    the operations of a pass, on rows of decodes and of prompts
plans      a pass's arrays, uploaded in one copy
chunk_plan the chunks of prompts for the delta rule
prompts    attention of prompts: FlashAttention-3, or torch's
graphs     decode passes captured by number of rows
"""
