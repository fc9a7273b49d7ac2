"""The ways to train binary weights: one file each, one contract, one registry."""

from bayesbinn.methods.bayesbinn import BayesBiNN
from bayesbinn.methods.bimu import BiMU
from bayesbinn.methods.bop import Bop
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.methods.ewc import EWC
from bayesbinn.methods.float import FloatAdam
from bayesbinn.methods.lrnet import LRNet
from bayesbinn.methods.pmf import PMF
from bayesbinn.methods.registry import METHODS, Method, get_method
from bayesbinn.methods.ste import STEAdam

__all__ = [
    "EWC",
    "METHODS",
    "PMF",
    "BayesBiNN",
    "BiMU",
    "BinaryOptimizer",
    "Bop",
    "FloatAdam",
    "LRNet",
    "Method",
    "STEAdam",
    "get_method",
]
