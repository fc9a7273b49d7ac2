"""One dispatch point for the element-wise work of every method.

Methods call these functions with lists of tensors (all parameters of a group in one call). State
tensors are float32 and contiguous; parameters and gradients may have any floating dtype and
layout. Work on other devices than the CPU, and in an installation without compiled kernels, runs
through the torch twin.
"""

from bayesbinn.kernels.dispatch import (
    accumulate_scaled,
    accumulate_slope,
    adam,
    bayesbinn_update,
    bayesbinn_update_from_slopes,
    bimu_update,
    bop_update,
    first_beyond,
    normal,
    pmf_update,
    restore_mode,
    ste_update,
    write_hard_sample,
    write_pmf_sign,
    write_pmf_weights,
    write_relaxed_sample,
    write_sign,
    write_tanh,
    write_training_sample,
)
from bayesbinn.kernels.noise import noise_key, random_bits, uniform
from bayesbinn.kernels.reference import AdamSettings, BiMUSettings, RuleSettings, largest_scale

__all__ = [
    "AdamSettings",
    "BiMUSettings",
    "RuleSettings",
    "accumulate_scaled",
    "accumulate_slope",
    "adam",
    "bayesbinn_update",
    "bayesbinn_update_from_slopes",
    "bimu_update",
    "bop_update",
    "first_beyond",
    "largest_scale",
    "noise_key",
    "normal",
    "pmf_update",
    "random_bits",
    "restore_mode",
    "ste_update",
    "uniform",
    "write_hard_sample",
    "write_pmf_sign",
    "write_pmf_weights",
    "write_relaxed_sample",
    "write_sign",
    "write_tanh",
    "write_training_sample",
]
