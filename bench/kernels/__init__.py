"""Own kernels on a GPU: right, and how near the time that their bytes take. See bench/gpu_kernels.py."""
