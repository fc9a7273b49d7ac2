"""One dispatch point for the element-wise work of every method.

Methods call these functions with lists of tensors (all parameters of a group in one call). State
tensors are float32 and contiguous; parameters and gradients may have any floating dtype and
layout. On devices other than the CPU, and in an installation without compiled kernels, the torch
reference runs instead. The kernels are the rows of `table`.
"""

from bayesbinn.kernels.dispatch import first_beyond as first_beyond
from bayesbinn.kernels.noise import noise_key as noise_key
from bayesbinn.kernels.noise import random_bits as random_bits
from bayesbinn.kernels.noise import uniform as uniform
from bayesbinn.kernels.reference import AdamSettings as AdamSettings
from bayesbinn.kernels.reference import BiMUSettings as BiMUSettings
from bayesbinn.kernels.reference import RuleSettings as RuleSettings
from bayesbinn.kernels.reference import largest_scale as largest_scale
from bayesbinn.kernels.table import *  # noqa: F403
