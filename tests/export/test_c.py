"""Export to C: programs compiled by gcc against the reference, on every operation and on the paper's networks."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesbinn as bb
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.export import export_c
from bayesbinn.export.c_memory import Block, place_blocks, plan_memory
from bayesbinn.export.c_text import number
from bayesbinn.export.networks import networks_of
from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import OPERATIONS, Graph, Node
from bayesbinn.runtime.reference import run
from tests.helpers.places import ROOT

cases: Any = import_module("tests.helpers.export_cases")
STRICT = ["-Wall", "-Wextra", "-pedantic", "-std=c99", "-Wconversion", "-Wshadow", "-Werror"]

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


# ---- compiling and running --------------------------------------------------------------------------


def program(folder: Path, models: list[ModelFile], compiler: list[str], runner: list[str], count: int = 0) -> Any:
    """Export, compile and run all models as one program: a list of answers, one dict per model.

    With a `count`, the models are `paper_networks` and only `predict` is called, because the rest doubles the time.
    """
    kinds = ["predict" if count else _kind(model) for model in models]
    known = {id(model): raw for model, raw in cases.paper_networks().values()} if count else {}
    count = count or 3
    folder.mkdir()
    blocks = []
    for i, model in enumerate(models):
        export_c(model, folder, name=f"m{i}")
        blocks.append(_BLOCK.replace("{more}", _MORE[kinds[i]]).replace("COUNT", str(count)).replace("{i}", str(i)))
    includes = "".join(f'#include "m{i}.c"\n' for i in range(len(models)))
    functions = "".join(f"static void run{i}(void)\n{{\n{block}}}\n" for i, block in enumerate(blocks))
    calls = "".join(f"    run{i}();\n" for i in range(len(models)))
    main = f"#include <stdio.h>\n{includes}{functions}int main(void)\n{{\n{calls}    return 0;\n}}\n"
    (folder / "main.c").write_text(main)
    subprocess.run([*compiler, *STRICT, "main.c", "-o", "main", "-lm"], cwd=folder, check=True, timeout=300)
    data = b"".join(cases.inputs_for(model, count).tobytes() for model in models)
    result = subprocess.run([*runner, str(folder / "main")], input=data, capture_output=True, check=True, timeout=300)
    numbers, answers, start = np.frombuffer(result.stdout, np.float32), [], 0
    for model, kind in zip(models, kinds, strict=True):
        raw = known[id(model)][:, :count] if known else run(model, cases.inputs_for(model, count))
        right = cases.expected(model, raw)
        names = _ANSWERS[kind]
        widths = [1 if n == "classes" else right[n.removesuffix(" again")][0].size for n in names]
        table = numbers[start : start + count * sum(widths)].reshape(count, sum(widths))
        start += table.size
        parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
        answers.append(dict(zip(names, parts, strict=True)) | {"right": right})
    assert start == len(numbers)
    return answers


def _kind(model: ModelFile) -> str:
    return "class" if model.graph.task == "classification" else "many" if model.graph.networks > 1 else "one"


_BLOCK = """    static float in[M{i}_INPUTS], out[2u * M{i}_OUTPUTS], buffer[M{i}_BUFFER_BYTES / sizeof(float)];
    for (int n = 0; n < COUNT; n++) {
        memset(buffer, 0xff, sizeof buffer); /* NaN: nothing may depend on the old content */
        if (fread(in, sizeof in, 1, stdin) != 1u || m{i}_predict(in, out, buffer, sizeof buffer) != 0) {
            return;
        }
        (void)fwrite(out, sizeof(float), M{i}_OUTPUTS, stdout);
{more}    }
"""
_ANSWERS = {
    "one": ["mean"],
    "many": ["mean", "mean again", "std"],
    "class": ["logits", "probabilities", "classes"],
    "predict": ["logits"],
}
_MORE = {
    "one": "",
    "predict": "",
    "many": """        (void)m{i}_predict_std(in, out, out + M{i}_OUTPUTS, buffer, sizeof buffer);
        (void)fwrite(out, sizeof out, 1, stdout);
""",
    "class": """        (void)m{i}_probabilities(in, out, buffer, sizeof buffer);
        (void)fwrite(out, sizeof(float), M{i}_OUTPUTS, stdout);
        out[0] = (float)m{i}_classify(in, buffer, sizeof buffer);
        (void)fwrite(out, sizeof(float), 1, stdout);
""",
}


def check(answer: dict[str, Any]) -> None:
    right = answer["right"]
    for name in set(answer) - {"right", "classes"}:
        expected = right[name.removesuffix(" again")]
        cases.assert_close(answer[name], expected.reshape(len(expected), -1))
    if "classes" in answer:
        two = np.sort(right["probabilities"], axis=-1)[:, -2:]
        clear = two[:, 1] - two[:, 0] > 1e-5
        np.testing.assert_array_equal(answer["classes"][clear, 0], right["probabilities"].argmax(-1)[clear])


@pytest.fixture(scope="module")
def fuzzed() -> dict[str, list[ModelFile]]:
    found = {op: cases.drawn(cases.models((op,)), 16 if "2d" in op else 7) for op in sorted(OPERATIONS)}
    found["classifier"] = cases.drawn(cases.models(steps=7, task="classification"), 15)
    found["residual"] = [cases.residual(n, task) for n in (1, 2, 5) for task in ("classification", "regression")]
    return found | {"regression": cases.drawn(cases.models(steps=7), 10)}


@pytest.fixture(scope="module")
def answers(fuzzed: dict[str, list[ModelFile]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    everything = [model for group in fuzzed.values() for model in group]
    results = iter(program(tmp_path_factory.mktemp("c") / "native", everything, ["gcc", "-O0"], []))
    return {key: [next(results) for _ in group] for key, group in fuzzed.items()}


@pytest.mark.parametrize("group", [*sorted(OPERATIONS), "classifier", "residual", "regression"])
def test_every_operation_matches_the_reference(group: str, answers: dict[str, list[Any]]) -> None:
    assert len(answers[group]) >= 5
    for answer in answers[group]:
        check(answer)


ARM = ["arm-linux-gnueabihf-gcc", "-static", "-O1"]
SAFE = ["gcc", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
OTHERS = {
    "sanitizers": (SAFE, []),
    "clang": (["clang", "-O1"], []),
    "m32": (["gcc", "-m32", "-O0"], []),
    "arm": (ARM, ["qemu-arm"]),
}


@pytest.mark.parametrize("machine", OTHERS)
def test_other_compilers_and_32_bits(machine: str, fuzzed: dict[str, list[ModelFile]], tmp_path: Path) -> None:
    compiler, runner = OTHERS[machine]
    for needed in (compiler[0], *runner):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    (tmp_path / "try.c").write_text("#include <math.h>\n#include <stdint.h>\nint main(void) { return 0; }\n")
    if subprocess.run([*compiler, "try.c", "-o", "try"], cwd=tmp_path, capture_output=True).returncode != 0:
        pytest.skip(f"{' '.join(compiler)} cannot link a program: its C library is not installed")
    for answer in program(tmp_path / "c", [group[-1] for group in fuzzed.values()], compiler, runner):
        check(answer)


@pytest.fixture(scope="module", params=[200, pytest.param(1000, marks=pytest.mark.slow)])
def paper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every network's answers to that many inputs."""
    models = {name: model for name, (model, _) in cases.paper_networks().items()}
    folder = tmp_path_factory.mktemp("paper") / "c"
    found = program(folder, list(models.values()), ["gcc", "-O2"], [], count=request.param)
    return dict(zip(models, found, strict=True))


@pytest.mark.parametrize("name", ["mnist_mlp", "vgg", "lrnet_mnist", "lrnet_cifar10", "two_moons", "ensemble"])
def test_papers_networks_give_the_same_classes(name: str, paper: dict[str, Any]) -> None:
    check(paper[name])
    right = paper[name]["right"]["probabilities"].argmax(axis=-1)
    assert len(set(right.tolist())) > 1
    np.testing.assert_array_equal(paper[name]["logits"].argmax(axis=-1), right)


# ---- the interface ------------------------------------------------------------------------------------


def small(**changes: Any) -> ModelFile:
    """4 numbers → 5 hidden units → 3 classes."""
    rng = np.random.default_rng(0)
    nodes = (
        Node("linear", (0,), "first", {"shape": (5, 4)}, {"weight": "a", "shift": "b"}),
        Node("relu", (1,)),
        Node("linear", (2,), "last", {"shape": (3, 5)}, {"weight": "c"}),
    )
    weights = {"a": pack_rows(rng.choice([-1, 1], (5, 4))), "c": pack_rows(rng.choice([-1, 1], (3, 5)))}
    tensors = {**weights, "b": rng.standard_normal(5).astype(np.float32)}
    return ModelFile(replace(Graph((4,), nodes), **changes), tensors)


def library(folder: Path, model: ModelFile, name: str = "model", *flags: str) -> ctypes.CDLL:
    _, source = export_c(model, folder, name=name)
    built = folder / f"{name}.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", *STRICT, *flags, str(source), "-o", str(built), "-lm"]
    subprocess.run(command, check=True, timeout=60)
    return ctypes.CDLL(str(built))


def test_a_wrong_buffer_and_nan_are_codes(tmp_path: Path) -> None:
    model = small()
    built = library(tmp_path, model)
    floats = plan_memory(networks_of(model)).floats
    x, out = np.ones(4, np.float32), np.zeros(3, np.float32)
    memory = np.full(floats + 4, 7, np.float32)

    def call(function: str, bytes_: int, start: int = 0, x: np.ndarray = x) -> int:
        where = ctypes.c_void_p(memory.ctypes.data + start)
        outputs = [] if function == "classify" else [ctypes.c_void_p(out.ctypes.data)]
        called = getattr(built, f"model_{function}")
        return int(called(ctypes.c_void_p(x.ctypes.data), *outputs, where, ctypes.c_size_t(bytes_)))

    right = cases.expected(model, run(model, x[None]))["probabilities"][0]
    for function in ("predict", "probabilities", "classify"):
        assert call(function, 4 * floats - 1) == -1
        assert call(function, 4 * floats, start=1) == -2
        assert call(function, 4 * floats) == (right.argmax() if function == "classify" else 0)
        assert built.model_predict(None, None, None, ctypes.c_size_t(1 << 20)) == -1
    np.testing.assert_array_equal(memory[floats:], 7)  # nothing beyond the declared size was touched
    assert call("classify", 4 * floats, x=np.array([1, np.nan, 0, 0], np.float32)) == -3
    assert call("predict", 4 * floats, x=np.array([1, np.nan, 0, 0], np.float32)) == 0 and np.isnan(out).all()


@pytest.mark.parametrize("outputs", [1, 3])
def test_shifts_of_a_calibration_reach_c(outputs: int, tmp_path: Path) -> None:
    network = torch.nn.Linear(4, outputs)
    shift = (0.75, -1.0, 0.25) if outputs > 1 else (0.5, -0.5)
    calibration = bb.LogitScale(1.5, mode_shift=shift)
    model = bb.pack(network, tmp_path / "model.safetensors", calibration=calibration)
    built, floats = library(tmp_path, model), plan_memory(networks_of(model)).floats
    memory, out = np.zeros(floats, np.float32), np.zeros(len(shift), np.float32)
    for x in torch.randn(5, 4):
        right = bb.predict(network, None, x[None], calibration=calibration).probabilities[0].numpy()
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x.numpy(), out, memory)]
        assert built.model_probabilities(*pointers, ctypes.c_size_t(4 * floats)) == 0
        np.testing.assert_allclose(out, right, rtol=0, atol=1e-6)


def test_only_the_buffer_is_written(tmp_path: Path) -> None:
    """No writable data in the object file, and no external functions except these from math.h and string.h."""
    _, source = export_c(cases.residual(5), tmp_path)
    subprocess.run(["gcc", "-Os", "-c", *STRICT, str(source), "-o", str(tmp_path / "m.o")], check=True)
    listing = subprocess.run(["nm", str(tmp_path / "m.o")], capture_output=True, text=True, check=True).stdout
    symbols = [line.split()[-2:] for line in listing.splitlines()]
    assert not [name for kind, name in symbols if kind in "dDbBcCsS"]
    outside = {name for kind, name in symbols if kind == "U"}
    assert outside <= {"memcpy", "memset", "expf", "logf", "log1pf", "tanhf", "_GLOBAL_OFFSET_TABLE_"}


def test_one_network_needs_no_math_library(tmp_path: Path) -> None:
    _, source = export_c(small(), tmp_path)
    (tmp_path / "main.c").write_text('#include "model.h"\nint main(void) { return model_classify(0, 0, 0) != -1; }\n')
    command = ["gcc", *STRICT, "-DMODEL_NO_PROBABILITIES", "main.c", source.name, "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "main")]).returncode == 0


def test_cplusplus_can_include_the_header(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    export_c(small(), tmp_path)
    (tmp_path / "main.cpp").write_text('#include "model.h"\nint main() { return model_classify(0, 0, 0) != -1; }\n')
    subprocess.run(["g++", "-Wall", "-Werror", "-fsyntax-only", "main.cpp"], cwd=tmp_path, check=True)


def test_the_manuals_program_compiles(tmp_path: Path) -> None:
    export_c(small(), tmp_path)
    manual = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    (tmp_path / "main.c").write_text(manual.split("```c\n")[1].split("```")[0])
    subprocess.run(["gcc", "-c", *STRICT, "main.c"], cwd=tmp_path, check=True)


HOSTILE = ['"; int x; "', "*/ int x; /*", "a\nb\r#error x\n", "??/", "\\", "é 数 😀", "", "%s%n", "model_x", "\0z"]
HOSTILE += ["é" * 9000]


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    base = small()
    rng = np.random.default_rng(0)
    count = len(HOSTILE)
    nodes = (
        *(replace(node, name=HOSTILE[i]) for i, node in enumerate(base.graph.nodes)),
        Node("linear", (3,), HOSTILE[2], {"shape": (count, 3)}, {"weight": "*/ \n#error"}),
    )
    tensors = {**base.tensors, "*/ \n#error": pack_rows(rng.choice([-1, 1], (count, 3)))}
    model = ModelFile(replace(base.graph, nodes=nodes, classes=tuple(HOSTILE), features=tuple(HOSTILE[:4])), tensors)
    built = library(tmp_path, model)
    built.model_class_name.restype = ctypes.c_char_p
    for index, name in enumerate(HOSTILE[:-1]):
        assert built.model_class_name(index) == name.encode().partition(b"\0")[0]
    assert built.model_class_name(count - 1) == ("é" * 127).encode()
    assert built.model_class_name(-1) is None and built.model_class_name(count) is None
    x, memory = np.ones(4, np.float32), np.zeros(100, np.float32)
    found = built.model_classify(
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(400)
    )
    assert found == run(model, x[None])[0, 0].argmax()


@pytest.mark.parametrize("name", ["int", "MODEL_a", "model_model", "x"])
def test_any_identifier_is_a_name(name: str, tmp_path: Path) -> None:
    assert getattr(library(tmp_path, small(), name), f"{name}_predict")(None, None, None, 0) == -1


@pytest.mark.parametrize("name", ["", "2nd", "a b", "é", "a;", 'x"', "_x", "a\n", "a" * 41])
def test_other_names_are_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="C names start with it"):
        export_c(small(), tmp_path, name=name)
    assert not list(tmp_path.iterdir())


def test_where_the_files_go(tmp_path: Path) -> None:
    assert export_c(small(), tmp_path, name="net") == (tmp_path / "net.h", tmp_path / "net.c")
    assert export_c(small(), tmp_path / "v1.2", name="net") == (tmp_path / "v1.2.h", tmp_path / "v1.2.c")
    assert export_c(small(), tmp_path / "a.c")[0] == tmp_path / "a.h"
    assert '#include "v1.2.h"' in (tmp_path / "v1.2.c").read_text()
    assert export_c(small(), tmp_path / "firmware" / "src" / "net")[1].is_file()
    with pytest.raises(InvalidFile, match=r"net\.c"):
        export_c(small(), tmp_path / "net.c" / "net")
    with pytest.raises(InvalidInput, match="is included by this name"):
        export_c(small(), tmp_path / 'a"b')
    assert not list(tmp_path.glob("*.partial"))


# ---- memory and invalid input -------------------------------------------------------------------------------


def test_memory_is_that_of_the_largest_step() -> None:
    """5 hidden units and 3 outputs: the inputs are the caller's, relu works in place, and the answer of `classify`
    reuses the memory of the hidden units."""
    assert plan_memory(networks_of(small())).floats == 5 + 3


def test_blocks_that_are_needed_together_never_overlap() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts = rng.integers(0, 20, 30)
        blocks = [Block(int(rng.integers(1, 50)), int(a), int(a + rng.integers(0, 6))) for a in starts]
        total = place_blocks(blocks)
        for i, a in enumerate(blocks):
            assert a.offset >= 0 and a.offset + a.size <= total
            for b in blocks[:i]:
                together = a.first <= b.last and b.first <= a.last
                assert not together or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


def test_real_numbers_keep_every_bit() -> None:
    numbers = np.array([0.1, -0.0, 1e-45, 3.4028235e38, 1 / 3, 65504, -2.5], np.float32)
    for value in numbers:
        assert np.float32(float.fromhex(number(value)[:-1])).tobytes() == value.tobytes()


def test_what_cannot_be_exported_is_rejected_by_name(tmp_path: Path) -> None:
    window = {"kernel": (2, 2), "stride": (1, 1), "padding": (1, 1), "ceil": False, "dilation": (5, 5)}
    missing = ModelFile(Graph((1, 4, 4), (Node("max_pool2d", (0,), "p", window),), task="regression"), {})
    with pytest.raises(InvalidInput, match=r"node 0 \(max_pool2d 'p'\): a window covers only padding"):
        export_c(missing, tmp_path)
    image = ModelFile(Graph((1, 4, 4), (Node("relu", (0,)),)), {})
    with pytest.raises(InvalidInput, match=r"returns \[1, 4, 4\] for an input; a classifier must return \[classes\]"):
        export_c(image, tmp_path)
    large = Graph((1, 1, 70_000), (Node("adaptive_max_pool2d", (0,), "", {"size": (1, 1 << 16)}),), task="regression")
    with pytest.raises(InvalidInput, match="overflow the 32 bits"):
        export_c(ModelFile(large, {}), tmp_path)
    assert not list(tmp_path.iterdir())
