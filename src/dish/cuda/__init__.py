"""Support for NVIDIA GPUs: CUDA graphs, kernels compiled at run time, and TF32 products."""
