"""The model file under its public name; `bayesbinn.modelfile` has the rest."""

from bayesbinn.modelfile.container import ModelFile, check_model, checksum, read, shapes, to_bytes, write

__all__ = ["ModelFile", "check_model", "checksum", "read", "shapes", "to_bytes", "write"]
