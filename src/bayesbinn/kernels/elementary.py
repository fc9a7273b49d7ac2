"""exp, log and tanh written out as single float32 operations.

Libraries round these functions differently in the last bit, and the last bit of δ can flip the
sign of a weight. Here every multiplication and addition is a separate IEEE operation in a fixed
order, so that the torch reference and the native kernels, which transcribe this file, agree bit for
bit on a CPU. (A GPU compiler may fuse products and sums; the results then agree to a few ulps.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Where float32 tanh rounds to 1: from x = 13·ln 2 on, 1 − tanh x < 2⁻²⁵, half an ulp below 1.
SATURATION = 13 * math.log(2)  # 9.0109

# The largest |δ| that `noise.uniform` can produce: ½·log((1 − 2⁻²⁴)/2⁻²⁴).
MAX_LOGISTIC = 12 * math.log(2)  # 8.3178

_EXP2_TAYLOR = [math.log(2) ** k / math.factorial(k) for k in range(8)]  # 2ᶠ, |f| ≤ ½: error below 6e-9
_ATANH_TAYLOR = [1 / (2 * k + 1) for k in range(5)]  # atanh(s)/s in s², |s| ≤ 0.172: error below 3e-9


def _horner(x: Tensor, coefficients: list[float]) -> Tensor:
    value = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * x + c
    return value


def exp_minus_2(a: Tensor) -> Tensor:
    """exp(−2a) for a ≥ 0, down to 2⁻¹²⁶."""
    t = (a * (-2 / math.log(2))).clamp(min=-126.0)
    whole = torch.round(t)
    power = ((whole.to(torch.int32) + 127) << 23).view(torch.float32)
    return _horner(t - whole, _EXP2_TAYLOR) * power


def tanh(x: Tensor) -> Tensor:
    """tanh x, exactly ±1 from |x| = 13·ln 2 on; absolute error below 2e-7."""
    a = x.abs()
    e = exp_minus_2(a)
    return torch.copysign(torch.where(a < SATURATION, (1 - e) / (1 + e), 1.0), x)


def sech2(x: Tensor) -> Tensor:
    """v(x) = 1 − tanh² x = sech² x for |x| < 13·ln 2, else 0.

    This is float32's ``1 - tanh(x)**2`` without the rounding noise near the cutoff, where one ulp
    of tanh changes the quotient s of the learning rule by a factor of a thousand.
    """
    a = x.abs()
    e = exp_minus_2(a)
    d = 1 + e
    return torch.where(a < SATURATION, (4 * e) / (d * d), 0.0)


def sqrt(x: Tensor) -> Tensor:
    """√x, correctly rounded as IEEE requires.

    torch's float32 square root comes from a vector library that may be an ulp off. Computed in
    float64, the result is exact. MPS has no float64, but also no native kernel to agree with.
    """
    return torch.sqrt(x) if x.device.type == "mps" else torch.sqrt(x.double()).float()


def half_logit(u: Tensor) -> Tensor:
    """½·log(u / (1 − u)): turns uniform noise into the paper's δ, half a logistic variable.

    log y = e·log 2 + 2·atanh((m − 1)/(m + 1)) with y = m·2ᵉ and m between √½ and √2.
    """
    bits = (u / (1 - u)).view(torch.int32)
    exponent = (bits >> 23) - 127
    mantissa = ((bits & 0x7FFFFF) | 0x3F800000).view(torch.float32)
    upper = mantissa > math.sqrt(2)
    mantissa = torch.where(upper, mantissa * 0.5, mantissa)
    exponent = torch.where(upper, exponent + 1, exponent)
    s = (mantissa - 1) / (mantissa + 1)
    return exponent.to(torch.float32) * (math.log(2) / 2) + s * _horner(s * s, _ATANH_TAYLOR)
