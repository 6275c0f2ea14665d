"""The H-step, fast C-BCD: ``cbcd`` (one column, one sweep, the objective) over codes in one of three forms.

``columns`` has the protocol and the readable form, which few rows use too, ``packed`` the bits of the CPU and
``inner`` their steps where S comes from labels, ``device`` the GPU, ``fused`` its sweep in one kernel (blocks.cu,
sweep.cu), ``steps`` its steps one by one; ``nvrtc`` compiles kernels, ``recorded`` records work as CUDA graphs.
"""
