"""BernoulliPosterior: the distribution against formulas and enumeration, files against damage."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.methods import BayesBiNN
from bayesbinn.posterior import BernoulliPosterior, LogitScale

NATURAL = torch.tensor([-torch.inf, -30.0, -2.0, -0.1, 0.0, 0.3, 1.5, 12.0, torch.inf])
P_PLUS = torch.tensor([0.0, *(1 / (1 + math.exp(-2 * v)) for v in (-30.0, -2.0, -0.1, 0.0, 0.3, 1.5, 12.0)), 1.0])


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))


def posterior_of(model: nn.Module, **settings: Any) -> BernoulliPosterior:
    return BernoulliPosterior({name: torch.randn_like(p) for name, p in model.named_parameters()}, **settings)


# ---- the distribution ------------------------------------------------------------------------------


def test_probability_mean_and_mode() -> None:
    posterior = BernoulliPosterior({"w": NATURAL})
    torch.testing.assert_close(posterior.probability()["w"], P_PLUS)
    torch.testing.assert_close(posterior.mean()["w"], 2 * P_PLUS - 1)
    assert posterior.mode()["w"].tolist() == [-1, -1, -1, -1, 1, 1, 1, 1, 1]


def test_natural_is_half_the_log_odds() -> None:
    p = BernoulliPosterior({"w": torch.tensor([0.7])}).probability()["w"].item()
    assert 0.5 * math.log(p / (1 - p)) == pytest.approx(0.7, rel=1e-5)


def test_entropy_matches_its_formula() -> None:
    finite = torch.linspace(-6, 6, 25)
    p = torch.sigmoid(2 * finite.double())
    expected = -(p * p.log() + (1 - p) * (1 - p).log())
    found = BernoulliPosterior({"w": finite}).entropy()["w"]
    torch.testing.assert_close(found.double(), expected, atol=1e-7, rtol=1e-5)


def test_entropy_at_the_ends() -> None:
    found = BernoulliPosterior({"w": NATURAL}).entropy()["w"]
    assert found[4].item() == pytest.approx(math.log(2))
    assert found[[0, -1]].tolist() == [0, 0]
    assert torch.isfinite(found).all()
    # For large λ it is (2λ + 1)·e^(−2λ), not 0.
    assert found[7].item() == pytest.approx(25 * math.exp(-24), rel=1e-3)


def test_mean_entropy_weighs_by_size() -> None:
    posterior = BernoulliPosterior({"a": torch.zeros(3), "b": torch.full((1,), torch.inf)})
    assert posterior.mean_entropy() == pytest.approx(0.75 * math.log(2))


def by_enumeration(q: Tensor, p: Tensor) -> float:
    """Σ over all 2ⁿ networks of q(w)·log(q(w)/p(w)), with 0·log 0 = 0."""
    total = 0.0
    up_q, up_p = torch.sigmoid(2 * q.double()), torch.sigmoid(2 * p.double())
    for signs in itertools.product([True, False], repeat=len(q)):
        w = torch.tensor(signs)
        chance_q = torch.where(w, up_q, 1 - up_q).prod().item()
        if chance_q > 0:
            total += chance_q * math.log(chance_q / torch.where(w, up_p, 1 - up_p).prod().item())
    return total


@pytest.mark.parametrize(
    "q",
    [
        torch.tensor([0.5, -1.0, 2.0, 0.0, -0.3]),
        torch.tensor([torch.inf, -1.0, -torch.inf, 0.0, 3.0]),
        torch.full((5,), torch.inf),
    ],
)
def test_kl_by_enumeration_of_all_networks(q: Tensor) -> None:
    prior = torch.tensor([-0.4, -1.0, 0.7, 0.2, 1.1])
    posterior = BernoulliPosterior({"a": q[:2].view(1, 2), "b": q[2:]})
    found = posterior.kl(BernoulliPosterior({"b": prior[2:], "a": prior[:2].view(1, 2)}))
    assert found == pytest.approx(by_enumeration(q, prior), rel=1e-6)
    assert posterior.kl() == pytest.approx(by_enumeration(q, torch.zeros(5)), rel=1e-6)


def test_kl_of_itself_is_zero_and_of_extremes_is_finite() -> None:
    posterior = BernoulliPosterior({"w": torch.tensor([0.3, -40.0, 1e6])})
    assert posterior.kl(posterior) == pytest.approx(0, abs=1e-9)
    assert BernoulliPosterior({"w": NATURAL}).kl() < len(NATURAL) * math.log(2)


# ---- samples -----------------------------------------------------------------------------------------


def test_samples_are_plus_or_minus_one_with_the_right_frequency() -> None:
    count = 20_000
    drawn = BernoulliPosterior({"w": NATURAL}).sample(count, seed=0)["w"]
    assert drawn.shape == (count, len(NATURAL))
    assert torch.equal(drawn.abs(), torch.ones_like(drawn))
    frequency = (drawn > 0).float().mean(dim=0)
    error = (P_PLUS * (1 - P_PLUS) / count).sqrt()
    assert ((frequency - P_PLUS).abs() <= 4 * error + 1e-7).all()


def test_seed_and_index_identify_a_sample() -> None:
    posterior = posterior_of(two_layers())
    five, nine = posterior.sample(5, seed=3), posterior.sample(9, seed=3)
    for name in posterior.natural:
        assert torch.equal(five[name], nine[name][:5])
        assert torch.equal(nine[name][7], posterior.draw(3, 7)[name])
    assert not torch.equal(five["0.weight"], posterior.sample(5, seed=4)["0.weight"])
    assert not torch.equal(five["0.weight"][0], five["0.weight"][1])


def test_samples_do_not_depend_on_other_parameters_or_the_random_state() -> None:
    both = posterior_of(two_layers())
    alone = BernoulliPosterior({"2.weight": both.natural["2.weight"]})
    state = torch.get_rng_state()
    assert torch.equal(both.draw(0, 0)["2.weight"], alone.draw(0, 0)["2.weight"])
    assert torch.equal(torch.get_rng_state(), state)


def test_parameters_of_equal_shape_get_different_noise() -> None:
    posterior = BernoulliPosterior({"a": torch.zeros(64), "b": torch.zeros(64)})
    drawn = posterior.draw(0, 0)
    assert not torch.equal(drawn["a"], drawn["b"])


# ---- frozen --------------------------------------------------------------------------------------------


def test_a_posterior_is_a_snapshot() -> None:
    source = torch.zeros(2, dtype=torch.float64)
    posterior = BernoulliPosterior({"w": source})
    source += 1
    assert posterior.natural["w"].tolist() == [0, 0]
    assert posterior.natural["w"].dtype is torch.float32
    with pytest.raises(TypeError):
        posterior.natural["w"] = source  # type: ignore[index]
    with pytest.raises(AttributeError):
        posterior.natural = {}  # type: ignore[misc, assignment]


def test_prefixes_of_wrappers_are_removed_from_names() -> None:
    posterior = BernoulliPosterior({"module._orig_mod.0.weight": torch.zeros(1)})
    assert list(posterior.natural) == ["0.weight"]


@pytest.mark.parametrize(
    ("natural", "message"),
    [
        ({}, "at least one parameter"),
        ({"w": torch.tensor([0.0, torch.nan])}, "λ of 'w' contains NaN"),
        ({"module.w": torch.zeros(1), "w": torch.zeros(1)}, "two parameters are named 'w'"),
    ],
)
def test_bad_parameters_are_rejected(natural: dict[str, Tensor], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        BernoulliPosterior(natural)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_logit_scale_is_a_positive_number(value: float) -> None:
    with pytest.raises(InvalidInput, match="logit scale of the mode is"):
        LogitScale(mode=value)
    with pytest.raises(InvalidInput, match="logit scale of the mean is"):
        LogitScale(mean=value)


def test_sample_needs_a_number() -> None:
    with pytest.raises(InvalidInput, match=r"sample\(n=0\): n must be 1 or more"):
        BernoulliPosterior({"w": torch.zeros(1)}).sample(0, seed=0)


# ---- in a model ----------------------------------------------------------------------------------------


def test_apply_writes_the_mode_or_a_sample() -> None:
    model = two_layers()
    posterior = posterior_of(model)
    posterior.apply(nn.DataParallel(model))
    assert all(torch.equal(p, posterior.mode()[name]) for name, p in model.named_parameters())
    posterior.apply(model, posterior.draw(0, 5))
    assert all(torch.equal(p, posterior.draw(0, 5)[name]) for name, p in model.named_parameters())


def test_a_posterior_of_another_model_is_rejected() -> None:
    posterior = posterior_of(two_layers())
    with pytest.raises(InvalidInput, match=r"different model: Sequential has no parameter '2.weight'"):
        posterior.apply(nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(InvalidInput, match=r"different model: '0.weight' has shape \(5, 3\) there, \(4, 3\) here"):
        posterior.apply(nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)))


def test_apply_rejects_weights_with_another_name_or_shape() -> None:
    model = two_layers()
    posterior = posterior_of(model)
    with pytest.raises(InvalidInput, match=r"no parameter '1.weight'. Did you mean"):
        posterior.apply(model, {"1.weight": torch.ones(4, 3)})
    with pytest.raises(InvalidInput, match=r"weights have shape \(3, 4\) for '0.weight', but the model \(4, 3\)"):
        posterior.apply(model, {"0.weight": torch.ones(3, 4)})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"2.weight": None}, "has no entry for '2.weight'"),
        ({"2.weight": torch.zeros(2, 5)}, r"has shape \(2, 5\) for '2.weight', but the model \(2, 4\)"),
        ({"2.weight": torch.full((2, 4), torch.inf)}, "is infinite for '2.weight': a point mass"),
    ],
)
def test_a_prior_with_an_unusable_entry_names_it(changed: dict[str, Tensor | None], message: str) -> None:
    model = two_layers()
    natural = {**posterior_of(model).natural, **changed}
    prior = BernoulliPosterior({name: value for name, value in natural.items() if value is not None})
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InvalidInput, match=message) as caught:
        BayesBiNN(model.named_parameters(), lr=0.1, train_set_size=10, temperature=1.0, prior=prior)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(InvalidInput, match="the prior " + message):
        posterior_of(model).kl(prior)


@pytest.mark.parametrize("shift", [(math.nan, 0.0), (0.0, math.inf), [0.0, 1.0]])
def test_a_logit_shift_is_a_tuple_of_finite_numbers(shift: Any) -> None:
    for name in ("mode", "mean"):
        with pytest.raises(InvalidInput, match=f"logit shift of the {name} is"):
            LogitScale(**{f"{name}_shift": shift})
    with pytest.raises(InvalidInput, match="logit shift of the mode has one value"):
        LogitScale(mode_shift=(1.0,))


def test_a_logit_scale_as_plain_values() -> None:
    scale = LogitScale(2.0, 3.0, (0.1, -0.1), (1 / 3, -1 / 3))
    assert LogitScale.from_dict(json.loads(json.dumps(scale.to_dict()))) == scale
    assert LogitScale(2.0, 3.0).to_dict() == {"mode": 2.0, "mean": 3.0}
    for wrong in ({"mode": 1.0}, {"mode": 1.0, "mean": 1.0, "shift": [1, 2]}, 3, {"mode": None, "mean": 1.0}):
        with pytest.raises(InvalidInput, match="logit scale"):
            LogitScale.from_dict(wrong)  # type: ignore[arg-type]


# ---- files ---------------------------------------------------------------------------------------------


def test_saving_and_loading_keeps_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "posterior.safetensors"
    posterior = BernoulliPosterior(
        {"w": NATURAL, "layers.0.weight": torch.randn(4, 3, 2)}, LogitScale(mode=6.25, mean=1 / 3)
    )
    posterior.save(path)
    loaded = BernoulliPosterior.load(str(path))
    assert set(loaded.natural) == set(posterior.natural)
    for name, value in posterior.natural.items():
        assert torch.equal(loaded.natural[name], value)
        assert loaded.natural[name].dtype is torch.float32
    assert loaded.logit_scale == LogitScale(6.25, 1 / 3)
    assert torch.equal(loaded.draw(1, 2)["w"], posterior.draw(1, 2)["w"])


def test_a_file_with_shifts_is_not_mistaken_for_one_without(tmp_path: Path) -> None:
    """Versions without shifts call LogitScale(**entry) with two names and fail on a third."""
    path, scale = tmp_path / "posterior.safetensors", LogitScale(2.0, 3.0, (0.5, -0.5), (0.25, -0.25))
    BernoulliPosterior({"w": NATURAL}, scale).save(path)
    assert BernoulliPosterior.load(path).logit_scale == scale
    with safe_open(path, framework="pt") as file:
        assert set(json.loads(file.metadata()["logit_scale"])) == {"mode", "mean", "mode_shift", "mean_shift"}
    BernoulliPosterior({"w": NATURAL}, LogitScale(2.0, 3.0)).save(path)
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["logit_scale"]) == {"mode": 2.0, "mean": 3.0}


def test_saving_replaces_an_older_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "posterior.safetensors"
    BernoulliPosterior({"w": torch.zeros(3)}).save(path)
    BernoulliPosterior({"w": torch.ones(3)}).save(path)
    assert BernoulliPosterior.load(path).natural["w"].tolist() == [1, 1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_truncated_file_is_rejected_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "posterior.safetensors"
    posterior_of(two_layers()).save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidFile, match=r"posterior.safetensors: not a complete posterior file") as caught:
            BernoulliPosterior.load(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InvalidFile):
        BernoulliPosterior.load(path)


HEADER = {"kind": "bayesbinn posterior", "version": 1, "logit_scale": {"mode": 1.0, "mean": 1.0}}


@pytest.mark.parametrize(
    ("metadata", "tensor", "message"),
    [
        (None, torch.zeros(1), "not a complete posterior file"),
        ({"format": "pt"}, torch.zeros(1), "not a complete posterior file"),
        ({**HEADER, "kind": "bayesbinn model"}, torch.zeros(1), "'bayesbinn model' version 1; expected"),
        ({**HEADER, "version": 2}, torch.zeros(1), "'bayesbinn posterior' version 2; expected"),
        ({**HEADER, "logit_scale": {"mode": -1.0, "mean": 1.0}}, torch.zeros(1), "logit scale of the mode is -1.0"),
        (
            {**HEADER, "logit_scale": {"mode": "x", "mean": 1.0}},
            torch.zeros(1),
            "posterior.safetensors: .*must be real",
        ),
        ({**HEADER, "logit_scale": 3}, torch.zeros(1), "posterior.safetensors: "),
        (HEADER, torch.tensor([torch.nan]), "λ of 'w' contains NaN"),
    ],
)
def test_files_of_another_kind_are_rejected(
    tmp_path: Path, metadata: dict[str, Any] | None, tensor: Tensor, message: str
) -> None:
    path = tmp_path / "posterior.safetensors"
    save_file({"w": tensor}, path, metadata=metadata and {key: json.dumps(value) for key, value in metadata.items()})
    with pytest.raises(InvalidFile, match=message) as caught:
        BernoulliPosterior.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(64), b"\xff" * 64, b'{"json": true}'])
def test_files_that_are_not_safetensors_are_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "posterior.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match="not a complete posterior file"):
        BernoulliPosterior.load(path)


def test_a_missing_file_or_a_folder_is_rejected(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.safetensors", tmp_path):
        with pytest.raises(InvalidFile, match="there is no such file"):
            BernoulliPosterior.load(path)


def test_the_file_of_another_model_is_rejected_on_use(tmp_path: Path) -> None:
    path = tmp_path / "posterior.safetensors"
    posterior_of(two_layers()).save(path)
    with pytest.raises(InvalidInput, match="this posterior belongs to a different model"):
        BernoulliPosterior.load(path).apply(nn.Linear(3, 4))


def test_repr_shows_the_size() -> None:
    assert repr(posterior_of(two_layers())) == "BernoulliPosterior(2 parameters, 20 weights)"
