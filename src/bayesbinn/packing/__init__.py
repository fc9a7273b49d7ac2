"""From a torch model to a model file."""

from bayesbinn.packing.packer import pack

__all__ = ["pack"]
