"""The figures on the pages of docs/ are those of results/: the same row, the same column."""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

from tests.helpers.markdown import Row, cells, row, table
from tests.helpers.places import ROOT


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def plain(name: str) -> str:
    """A page without line breaks, to look for sentences."""
    return " ".join(page(name).split())


def result(name: str, section: str = "") -> str:
    """A file of results/, or one of its sections."""
    text = (ROOT / "results" / name).read_text(encoding="utf-8")
    return text.partition(f"## {section}")[2].partition("\n## ")[0] if section else text


def numbers(name: str) -> Any:
    return json.loads(result(name))


def columns(rows: list[Row], *names: str) -> list[list[str]]:
    return [[each[name] for name in names] for each in rows]


DOWNLOADS = ("bayesbinn", "onnxruntime-web, fp32")
STEPS = {"MNIST MLP": "MNIST MLP", "VGG-like CNN": "VGG CNN", "continual-learning MLP": "continual MLP"}


def test_the_steps_of_training() -> None:
    shown = table(page("speed.md"), "network", "fused Adam")
    assert len(shown) == len(STEPS)
    for each in shown:
        measured = table(
            result("benchmarks/training.md", f"Full step: {STEPS[each['network'].split(',')[0]]}"), "optimizer"
        )
        adam, ours = row(measured, optimizer="adam"), row(measured, optimizer="bayesbinn")
        for cell, found in ((each["fused Adam"], adam["ms"]), (each["BayesBiNN"], ours["ms"])):
            digits = len(cell.removesuffix(" ms").partition(".")[2])
            assert cell == f"{float(found):.{digits}f} ms"
        assert each["ratio"] == f"{float(ours['× fused Adam']):.2f}"


def test_the_sentences_about_training() -> None:
    own = {each[""]: float(each["ms"]) for each in table(result("benchmarks/training.md", "The optimizer's own"), "")}
    text = plain("speed.md")
    assert f"own part takes {own['bayesbinn']:.0f} ms for the MNIST MLP" in text
    assert f"the paper's formulas takes {own['textbook']:.0f} ms" in text
    steps = table(result("benchmarks/training.md", "Full step: MNIST MLP"), "optimizer")
    ratio = {each["optimizer"]: f"{float(each['× fused Adam']):.2f}" for each in steps}
    assert f"STE-Adam and Bop take {ratio['ste']} and {ratio['bop']} times as long as Adam" in text
    assert f"memory-bound at {ratio['pmf']}" in text
    compiled = re.search(r"torch.compile: [\d.]+ ms a step, ([\d.]+) ×", result("benchmarks/profile.md"))
    assert compiled is not None and f"does not shorten it ({float(compiled[1]):.2f} ×)" in text


def test_inference() -> None:
    measured: list[Row] = []
    for section in ("Linear layers", "The MNIST MLP", "The VGG CNN"):
        measured += table(result("benchmarks/inference.md", section), "", "batch")
    shown = table(page("speed.md"), "network", "batch")
    assert len(shown) == 4
    for each in shown:
        name = each["network"].split(",")[0].removeprefix("linear ")
        (found,) = [
            line for line in measured if (line[""], line["batch"], line["threads"]) == (name, each["batch"], "1")
        ]
        for column in ("int8", "exact", "torch fp32", "onnxruntime fp32", "onnxruntime int8"):
            assert each[column] == found[f"{column}, ms"], (name, column)


def test_scaling() -> None:
    report = numbers("benchmarks/scaling.json")
    step, speed = report["step, ms"], report["speed of two ranks beside one process of two threads"]
    sent = report["sent per rank and step, bytes"]["measured, two ranks"] / 1e6
    assert (
        f"two ranks with one thread each take {step['two ranks']:.0f} ms per step of the MNIST MLP, "
        "one process with two threads takes "
        f"{step['one process']:.0f} ms ({speed['two ranks']:.2f}×). Each rank sends {sent:.1f} MB per step"
    ) in plain("speed.md")
    assert (
        f"one process with two threads takes {step['one process']:.1f} ms, two ranks with one thread each "
        f"{step['two ranks']:.1f} ms ({speed['two ranks']:.2f}×), with independent noise "
        f"{step['two ranks, own noise']:.1f} ms ({speed['two ranks, own noise']:.2f}×"
    ) in plain("scale.md")


def test_what_a_browser_downloads() -> None:
    measured = result("benchmarks/browser.md")
    ours, theirs = (row(table(measured, "download, bytes"), **{"download, bytes": name}) for name in DOWNLOADS)
    code, float32 = ours["runtime"].split(" ")[0], int(theirs["MNIST MLP"].replace(",", ""))
    runtime, packed = (int(cell.replace(",", "")) for cell in (theirs["runtime"], ours["MNIST MLP"]))
    first = row(table(measured, "", "int8, ms"), **{"": "MNIST MLP"})["first prediction int8, ms"]
    assert (
        f"A page downloads {code} bytes of runtime, compared with {runtime / 1e6:.1f} MB for onnxruntime-web, and "
        f"{packed / 1e6:.1f} MB for the paper's MNIST network instead of {float32 / 1e6:.0f} MB. Getting from that "
        f"file's bytes to the first prediction in int8 mode takes {first} ms"
    ) in plain("browser.md")


def test_packed_networks_agree() -> None:
    packed = table(result("benchmarks/agreement.md"), "network")
    share = {each["network"].split(",")[0]: each["int8: same class"].split(" (")[0] for each in reversed(packed)}
    worst = min(each["int8: same class"].split(" (")[0] for each in packed if each["network"].startswith("MNIST"))
    text = plain("deployment.md")
    assert {each["exact: same class"] for each in packed} == {"100.00 %"}
    assert f"`exact` gives PyTorch's class for all of them and `int8` for {worst} or more" in text
    assert f"on 2,000 CIFAR-10 images, `int8` gives it for {share['CIFAR-10']}" in text
    many = numbers("benchmarks/agreement.json")["ensemble"]
    medians = [statistics.median(values) for key, values in many.items() if key.startswith("times_")]
    assert f"networks takes {min(medians):.1f} to {max(medians):.1f} times as long as one network" in text


def test_the_exports() -> None:
    shown, measured = page("export.md"), result("benchmarks/exports.md")
    for first, names in (
        ("network", ("weights", "model file", "ONNX", "C source", "flash", "RAM", "ms")),
        ("weights", ("file", "a run")),
    ):
        there = columns(table(measured, first, names[0]), first, *names)
        assert columns(table(shown, first, names[0]), first, *names) == there and len(there) >= 3
    small = {each["network"].strip("`"): each for each in table(measured, "network")}
    mlp, cnn = (
        [small[name][f"Cortex-M4 {part}"] for part in ("code", "constants")]
        for name in ("continual_mlp", "lrnet_mnist")
    )
    assert (
        f"turns `continual_mlp` into {mlp[0]} bytes of code and {mlp[1]} of constants, and `lrnet_mnist` into "
        f"{cnn[0]} and {cnn[1]}."
    ) in plain("export.md")


def test_published_streams() -> None:
    found = table(result("paper/figure-stream.md"), "Variant")
    ours, theirs = (row(found, Variant=f"{each}, published")["Last 5 tasks"] for each in ("BayesBiNN", "BiMU"))
    assert f"published {ours} for BayesBiNN without a memory and {theirs} for BiMU" in plain("continual.md")


def test_the_duration_of_a_seed() -> None:
    took = re.search(r"real\s+(\d+)m([\d.]+)s", result("continual/duration.md"))
    assert took is not None
    assert f"took {took[1]} min {float(took[2]):.0f} s" in plain("continual.md")


def test_tables() -> None:
    theirs = ("table", "splits", "ours %", "MLPClassifier %", "NLL", "theirs")
    ours = ("table", "splits", "bayesbinn", "MLPClassifier", "NLL", "MLPClassifier's NLL")
    shown = columns(table(page("data.md"), "table"), *ours)
    assert shown == columns(table(result("benchmarks/tables.md"), "table"), *theirs)


def test_the_demo() -> None:
    printed = result("demo.md")
    lines = [cells(line.replace("│", "|")) for line in printed.splitlines() if line.startswith("│ ")]
    shown = table(page("prediction.md"), "method", "by")
    assert len(shown) == 8
    for each in shown:
        (found,) = [line for line in lines if line[:2] == [each["method"], each["by"]]]
        assert list(each.values()) == found
    auroc = re.search(r"AUROC ([\d.]+)", printed)
    assert auroc is not None and f"with an AUROC of {auroc[1]}" in plain("prediction.md")


def test_the_moons() -> None:
    measured = table(result("paper/figure-moons.md"), "Prediction")
    far = {each["Prediction"]: each["Entropy far from the data"].split(" ±")[0] for each in measured}
    assert (
        f"{far['STE']} for STE, {far['BayesBiNN, mode']} for the mode and {far['BayesBiNN, mean of 10']} for the mean"
    ) in plain("prediction.md")


def test_the_curves() -> None:
    measured = table(result("paper/figure-curves.md"), "Data")
    shown = table(page("paper.md"), "data", "epoch")
    assert len(shown) == len([each for each in measured if each["Epoch"].isdigit()]) == 12
    for each in shown:
        found = row(measured, Data=each["data"], Epoch=each["epoch"])
        assert (each["ours"], each["the authors' runs"]) == (found["Test, ours"], found["Test, authors"])
    half = numbers("runs/mnist-bayesbinn-e500-s1/record.json")["posterior"]
    last = max(int(each["epoch"]) for each in shown if each["data"] == "MNIST")
    assert f"after {last} epochs {100 * half['saturated']:.0f} % of its weights are certain" in plain("paper.md")


def test_the_posterior() -> None:
    measured = table(result("benchmarks/posterior.md"), "data", "seeds", "by")
    mnist = {each["by"]: each["test accuracy %"].split(" ±")[0] for each in measured if each["data"] == "MNIST"}
    assert f"({mnist['τ = 1e-10, mode']} % versus {mnist['certainty 100, mean']} %" in plain("methods.md")
    below = [
        data
        for data in {each["data"] for each in measured}
        if float(row(measured, data=data, by="certainty 100, mean")["NLL"].split()[0])
        < float(row(measured, data=data, by="certainty 100, mode")["NLL"].split()[0])
    ]
    assert len(below) == 4 and "wine" not in below
    assert "below the mode's on four of the five, but not on wine" in plain("methods.md")
