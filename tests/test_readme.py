"""The README keeps its promises: short, no dead links, an example that prints what it shows, figures from results/."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from statistics import median

import pytest

from tests.helpers.markdown import blocks, row, table
from tests.helpers.places import ROOT

PAGE = ROOT / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
RESULTS = ROOT / "results"


def test_it_is_short_and_has_no_gaps() -> None:
    assert len(TEXT.splitlines()) < 150
    assert "<!--" not in TEXT


def test_links_and_named_files_exist() -> None:
    targets = set(re.findall(r"\]\(([^)#]+)", TEXT)) | set(re.findall(r'(?:src|srcset)="([^"]+)"', TEXT))
    local = {target for target in targets if not target.startswith("https://")}
    assert len(local) >= 20
    assert not [target for target in local if not (ROOT / target).exists()]


def test_the_example_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = [block for block in blocks(PAGE) if block.language == "python"]
    (shown,) = [block.code for block in blocks(PAGE) if block.language == "text"]
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * example.line + example.code, str(PAGE), "exec"), {})
    percent = re.compile(r"([\d.]+)%")
    assert percent.sub("%", printed.getvalue()) == percent.sub("%", shown)
    # Another processor rounds sums differently, so training takes another path.
    assert float(percent.findall(printed.getvalue())[0]) == pytest.approx(float(percent.findall(shown)[0]), abs=2)


def test_every_figure_of_the_evidence_table_stands_in_the_results() -> None:
    def text(name: str) -> str:
        return (RESULTS / name).read_text(encoding="utf-8")

    step = text("benchmarks/training.md").partition("## Full step: MNIST MLP")[2].partition("## ")[0]
    steps = {each["optimizer"]: float(each["ms"]) for each in table(step, "optimizer")}
    shortcuts = [
        each
        for each in table(text("benchmarks/shortcuts.md"), "Kernels")
        if (each["Kernels"], each["Units"], each["Threads"]) == ("avx512", "2048", "2")
    ]
    amd, intel = sorted(shortcuts, key=lambda each: each["Processor"])
    assert amd["Processor"].startswith("AMD") and intel["Processor"].startswith("Intel")
    inference = text("benchmarks/inference.md").partition("## The MNIST MLP")[2].partition("## ")[0]
    one = row(table(inference, ""), batch="1", threads="1")
    packed = [each for each in table(text("benchmarks/agreement.md"), "network") if "MNIST" in each["network"]]
    (size,) = {int(each["file, bytes"].replace(",", "")) for each in packed}
    (exact,) = {each["exact: same class"] for each in packed}
    weights = json.loads(text("benchmarks/scaling.json"))["sent per rank and step, bytes"]["computed"]
    curve = row(table(text("paper/figure-curves.md"), "Data"), Data="MNIST", Epoch="253")
    short = row(table(text("paper/table-accuracy.md"), "Data"), Data="MNIST", Optimizer="BayesBiNN (mode)", Epochs="20")
    schedules = table(text("paper/table-schedules.md"), "Epochs")
    longer = row(schedules, Epochs="100")["The paper's settings: test"]
    better = row(schedules, Epochs="50")["Best settings: test"]
    small = row(table(text("paper/table-lrnet.md"), "Data"), Data="MNIST", Optimizer="BayesBiNN (mode)", Epochs="20")
    tasks = table(text("paper/figure-continual.md"), "Variant", "BatchNorm")

    def mean(variant: str, epochs: str = "100") -> str:
        return row(tasks, Variant=variant, BatchNorm="shared", Epochs=epochs)["Mean"]

    authors = mean("The authors' code, posterior as prior")
    stream = table(text("paper/figure-stream.md"), "Variant")

    def lasting(variant: str) -> str:
        found = row(stream, Variant=variant)
        return f"{found['Last 5 tasks']} %, {found['Older tasks']} %"

    estimators = table(text("benchmarks/estimators.md").partition("## Classification")[2].partition("## ")[0], "table")

    def accuracy(model: str) -> str:
        return f"{median(float(each['accuracy %']) for each in estimators if each['model'] == model):.2f} %"

    def wins(one: str, other: str) -> int:
        by_model = {
            model: {each["table"]: float(each["accuracy %"]) for each in estimators if each["model"] == model}
            for model in (one, other)
        }
        return sum(value > by_model[other][name] for name, value in by_model[one].items())

    browser = row(table(text("benchmarks/browser.md"), "", "int8, ms"), **{"": "MNIST MLP"})
    code = {
        each["download, bytes"]: each["runtime"].split(" ")[0]
        for each in table(text("benchmarks/browser.md"), "download, bytes")
    }
    size_of = {name: int(bytes_.replace(",", "")) for name, bytes_ in code.items()}
    drawings = text("benchmarks/drawings.md")
    refused = re.search(r"Of letters without look-alikes and scribbles together, ([\d.]+ %) are refused", drawings)
    assert refused is not None
    digits, fonts = (row(table(drawings, "images"), images=name) for name in ("MNIST test digits", "digits in fonts"))
    kills = row(table(text("storm.md"), "storm"), storm="kills")

    wanted = [
        (f"{steps['bayesbinn']:.1f} ms", f"{steps['adam']:.1f} ms, PyTorch's fused Adam"),
        (
            f"{amd['BayesBiNN']} ms (AMD), {intel['BayesBiNN']} ms (Intel)",
            f"{amd['fused Adam']} ms, {intel['fused Adam']} ms, PyTorch's fused Adam",
        ),
        (
            f"{one['int8, ms']} ms (int8), {one['exact, ms']} ms (exact)",
            f"{one['torch fp32, ms']} ms, PyTorch; {one['onnxruntime int8, ms']} ms, onnxruntime int8",
        ),
        (f"{size / 1e6:.2f} MB", f"{weights / 1e6:.1f} MB as float32"),
        (f"{exact} (exact), at least {min(each['int8: same class'].split(' (')[0] for each in packed)} (int8)", ""),
        (
            f"{browser['int8, ms']} ms (int8), {size_of['bayesbinn'] / 1e3:.1f} KB of code",
            f"{browser['onnxruntime-web fp32, ms']} ms, {size_of['onnxruntime-web, fp32'] / 1e6:.1f} MB of code, "
            "onnxruntime-web",
        ),
        (refused[1], f"{digits['refused']} of MNIST's test digits, {fonts['refused']} of digits in the letters' fonts"),
        (f"{curve['Test, ours']} %", f"{curve['Test, authors']} %, the authors' own runs"),
        (f"{short['Test, ours']} %", f"{short['paper']} %, the paper, 500 epochs"),
        (f"{longer} %", f"{short['paper']} %, the paper, 500 epochs"),
        (f"{better} %", f"{short['paper']} %, the paper, 500 epochs"),
        (f"{small['Test, ours']} %", f"{small['paper']} %, the paper, 190 epochs"),
        (
            f"{mean('BayesBiNN, posterior as prior')} %",
            f"{mean('BayesBiNN, without prior')} %, without the prior; {authors} %, the authors' code",
        ),
        (lasting("BayesBiNN with memory"), f"{lasting('BayesBiNN, posterior as prior')}, without the memory"),
        (
            f"{accuracy('ours')}; higher on {wins('ours', 'MLP')} tables",
            f"{accuracy('MLP')}, scikit-learn's MLPClassifier; higher on {wins('MLP', 'ours')}",
        ),
        (f"{kills['failures']} of {kills['cases'].removesuffix(' kills')}", ""),
    ]
    shown = [(each["bayesbinn"], each["compared with"]) for each in table(TEXT, "what")]
    assert shown == wanted
    assert len({each["what"] for each in table(TEXT, "what")}) == len(wanted)
