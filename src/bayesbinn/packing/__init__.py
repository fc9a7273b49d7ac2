"""From a torch model to a model file, and from several files to an ensemble."""

from bayesbinn.packing.ensemble import pack_ensemble
from bayesbinn.packing.packer import pack

__all__ = ["pack", "pack_ensemble"]
