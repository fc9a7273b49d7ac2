"""scikit-learn's own checks, all of them, with no expected failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor

# Other methods take another path through the same code, for which one small network is enough. The regressor's path is
# that of the classifier but for the loss.
ONE = {"networks": 1, "hidden": 64}
OTHERS = [BinaryNetworkClassifier(method="ste"), BinaryNetworkRegressor(method="float")]
ESTIMATORS = [BinaryNetworkClassifier(), BinaryNetworkRegressor(), BinaryNetworkClassifier(method="ste", **ONE)]


@parametrize_with_checks(ESTIMATORS)
def test_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(OTHERS)
def test_checks_with_networks_of_the_usual_size(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", [*ESTIMATORS, *OTHERS])
def test_no_check_is_switched_off(estimator: Any) -> None:
    tags = get_tags(estimator)
    assert not tags.non_deterministic
    assert not tags.no_validation
    assert not tags._skip_test
    if tags.classifier_tags is not None:
        assert not tags.classifier_tags.poor_score
    if tags.regressor_tags is not None:
        assert not tags.regressor_tags.poor_score
