"""Runs a model file with an installed wheel: native kernels, known outputs, no torch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import bayesbinn
import bayesbinn.runtime

FIXTURE = Path(__file__).parents[1] / "fixtures" / "model-v1.safetensors"


def main() -> None:
    model = bayesbinn.runtime.load(FIXTURE)
    known = np.load(FIXTURE.with_suffix(".npz"))
    np.testing.assert_allclose(model.outputs(known["inputs"]), known["exact"], rtol=1e-4, atol=1e-4)
    assert model.backend != "reference", "built without the native kernels"
    assert "torch" not in sys.modules
    print(f"bayesbinn {bayesbinn.__version__}: {model.backend} kernels give the known outputs")


if __name__ == "__main__":
    main()
