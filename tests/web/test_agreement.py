"""The paper's networks on real test images: Node, Chromium and Firefox against the Python runtime."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesbinn import models
from bayesbinn.data.published.cifar import read_records
from bayesbinn.data.published.mnist import read_idx
from bayesbinn.packing.packer import pack
from bayesbinn.runtime import load
from tests.helpers.web import MODULE, chromium, close, firefox, job, run_jobs, same_bits, served


def smooth_cnn() -> torch.nn.Module:
    """Operations that 8 bits do not make exact: tanh, sigmoid and averages."""
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 28, 28)),
        torch.nn.Conv2d(1, 32, 3, bias=False),
        torch.nn.BatchNorm2d(32, affine=False),
        torch.nn.Tanh(),
        torch.nn.AvgPool2d(2),
        torch.nn.Conv2d(32, 32, 3, bias=False),
        torch.nn.BatchNorm2d(32, affine=False),
        torch.nn.Sigmoid(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10, bias=False),
        torch.nn.BatchNorm1d(10, affine=False),
    )


NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {"mlp": models.mnist_mlp, "vgg": models.vgg}
FEW = {"mlp": 100, "vgg": 6}


def images_of(name: str, data_dir: Path) -> torch.Tensor:
    """Test images as the network takes them, normalized."""
    if name != "vgg":
        x = read_idx(data_dir / "mnist", "t10k-images-idx3-ubyte", (10_000, 28, 28)).flatten(1).float() / 255
        return (x - 0.1307) / 0.3081
    x = read_records([data_dir / "cifar-10-batches-bin" / "test_batch.bin"], 10_000, (10,))[0].float() / 255
    return (x - 0.47) / 0.2


def packed(name: str, data_dir: Path, folder: Path, count: int) -> tuple[Path, Any]:
    """A network of ±1 with BatchNorm statistics of other images, as a file, and images."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network, images = {**NETWORKS, "smooth": smooth_cnn}[name](), images_of(name, data_dir)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randint(0, 2, parameter.shape) * 2.0 - 1.0)
        for module in network.modules():
            if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
                module.momentum = None
        network.train()(images[-32:])
    path = folder / f"{name}.safetensors"
    pack(network.eval(), path, example_input=images[:2])
    return path, images[:count].numpy()


def check(name: str, activations: str, y: Any, path: Path, x: Any) -> None:
    expected = load(path, activations, 1).predict(x)
    assert len(set(expected.argmax(axis=1))) > 1, "the network must tell images apart"
    if activations == "exact":
        assert close(y, expected), np.abs(y.reshape(expected.shape) - expected).max() / np.abs(expected).max()
    else:
        assert same_bits(y, expected), f"{name}: int8 is exact integer arithmetic, so every bit is the same"


def agrees_in_node(name: str, data_dir: Path, folder: Path, count: int) -> None:
    path, x = packed(name, data_dir, folder, count)
    modes = ("exact", "int8")
    for mode, said in zip(modes, run_jobs([job(folder, name, path, mode, x) for mode in modes], folder), strict=True):
        assert said["verdict"] == "runs", said
        check(name, mode, said["y"], path, x)


def site(name: str, data_dir: Path, folder: Path, count: int) -> tuple[Path, Any]:
    """A folder with a page, the runtime, a network and images."""
    path, x = packed(name, data_dir, folder, count)
    (folder / "x").write_bytes(x.astype(np.float32).tobytes())
    for file in (MODULE, MODULE.with_suffix(".wasm")):
        shutil.copy(file, folder)
    (folder / "index.html").write_text("<!doctype html><title>test</title>")
    return path, x


def agrees_in_chromium(name: str, data_dir: Path, folder: Path, count: int) -> None:
    path, x = site(name, data_dir, folder, count)
    with served(folder) as address, chromium() as browser:
        page = browser.new_page()
        page.goto(f"{address}/index.html")
        for mode in ("exact", "int8"):
            text = page.evaluate(IN_PAGE, [path.name, mode])
            check(name, mode, np.frombuffer(base64.b64decode(text), np.float32), path, x)


IN_PAGE = """async ([file, activations]) => {
  const { load } = await import("./bayesbinn.js");
  const bytes = async (name) => await (await fetch(name)).arrayBuffer();
  const model = await load(await bytes(file), { activations });
  const y = new Uint8Array(model.predict(new Float32Array(await bytes("x"))).buffer);
  let text = "";
  for (const byte of y) text += String.fromCharCode(byte);
  return btoa(text);
}"""


@pytest.mark.parametrize("name", NETWORKS)
def test_node_computes_what_python_does(name: str, data_dir: Path, tmp_path: Path) -> None:
    agrees_in_node(name, data_dir, tmp_path, FEW[name])


def test_other_operations_in_8_bits_give_the_class_that_python_gives(data_dir: Path, tmp_path: Path) -> None:
    path, x = packed("smooth", data_dir, tmp_path, 1000)
    (said,) = run_jobs([job(tmp_path, "smooth", path, "int8", x)], tmp_path)
    expected = load(path, "int8", 1).predict(x)
    same = said["y"].reshape(expected.shape).argmax(axis=1) == expected.argmax(axis=1)
    assert len(set(expected.argmax(axis=1))) > 1 and same.mean() >= 0.999, same.mean()


def test_chromium_computes_what_python_does(data_dir: Path, tmp_path: Path) -> None:
    agrees_in_chromium("mlp", data_dir, tmp_path, FEW["mlp"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_node_computes_what_python_does_for_a_thousand_images(name: str, data_dir: Path, tmp_path: Path) -> None:
    agrees_in_node(name, data_dir, tmp_path, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_chromium_computes_what_python_does_for_a_thousand_images(name: str, data_dir: Path, tmp_path: Path) -> None:
    agrees_in_chromium(name, data_dir, tmp_path, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_firefox_computes_what_python_does_for_a_thousand_images(name: str, data_dir: Path, tmp_path: Path) -> None:
    path, x = site(name, data_dir, tmp_path, 1000)
    with served(tmp_path) as address, firefox(tmp_path / "profile", f"{address}/index.html") as call:
        for mode in ("exact", "int8"):
            text = call(IN_PAGE, [path.name, mode])
            check(name, mode, np.frombuffer(base64.b64decode(text), np.float32), path, x)
