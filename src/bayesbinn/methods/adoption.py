"""Which parameters a binary method should not be given: biases and the gains of normalisation layers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor

from bayesbinn.binary import is_binary_on_purpose
from bayesbinn.errors import InvalidInput

_REMEDY = "pass the first list of bb.split_parameters(model), and the second to a torch optimizer"


def question_vectors(label: str, named: Mapping[Tensor, str], added: Sequence[Tensor]) -> None:
    """Refuse gains and warn of biases, which ``model.parameters()`` has among the weights.

    An optimizer knows only tensors (`named` are all of them, `added` the newest), so vectors beside matrices are
    taken for gains and biases, and for gains if their values are all 1, as they are before training. Vectors alone
    are somebody's weights, and what `split_parameters` was asked to make binary is never questioned.
    """
    had_matrix = any(_is_matrix(parameter) for parameter in named.keys() - set(added))
    if not had_matrix and not any(_is_matrix(parameter) for parameter in added):
        return
    vectors = [p for p in (added if had_matrix else named) if _is_vector(p) and not is_binary_on_purpose(p)]
    for vector in vectors:
        if bool((vector.detach() == 1).all()):
            raise InvalidInput(
                f"{label} got {named[vector]!r} of shape {tuple(vector.shape)}, whose values are all 1: the gain of a "
                f"normalisation layer, which must stay real; {_REMEDY}"
            )
    if vectors:
        count = "a parameter" if len(vectors) == 1 else f"{len(vectors)} parameters"
        warnings.warn(
            f"{label} makes {count} of one dimension binary, such as {named[vectors[0]]!r} of shape "
            f"{tuple(vectors[0].shape)}; biases and gains should stay real: {_REMEDY}. For biases that are binary on "
            "purpose, use split_parameters(model, biases=True)",
            UserWarning,
            stacklevel=2,
        )


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.dim() >= 2


def _is_vector(parameter: Tensor) -> bool:
    return parameter.dim() < 2 and parameter.numel() > 0
