"""Fast C-BCD, the H-step: one column, one sweep, the objective.

The codes have three forms: readable, packed bits (CPU) and GPU.
"""
