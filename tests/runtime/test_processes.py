"""The runtime with threads, processes and other programs: little memory, forks, files that change during reading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile, write
from bayesbinn.modelfile.graph import Graph, Node
from tests.helpers.places import ROOT
from tests.helpers.random_graphs import GraphBuilder

pytest.importorskip("bayesbinn.runtime._native", reason="the package was built without native kernels")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits on address space need Linux")


LIMIT = """
import resource
def limit(megabytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (megabytes << 20), resource.RLIM_INFINITY))
"""


def run(program: str, *arguments: Path, timeout: float = 60.0) -> str:
    """What a program prints; it must end by itself with exit code 0."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
        # Large arrays are returned to the system at once, so that a memory limit means the same in every run.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"
    return done.stdout.strip()


# ---- little memory -----------------------------------------------------------------------------------


def test_after_a_memory_error_a_model_still_works(tmp_path: Path) -> None:
    """Two rows do not fit, one does: the second call must not rely on the buffers that the first did not get."""
    g = GraphBuilder((8, 512, 512), 1, 0)  # 8 MB for each value of an example
    for _ in range(3):
        g.add("tanh")
    g.add("add", 1, 3)
    g.add("add", 1, 4)
    g.add("adaptive_avg_pool2d", size=(1, 1))
    g.add("reshape", shape=(8,))
    write(tmp_path / "m.safetensors", g.model())
    program = LIMIT + (
        "import sys, numpy as np, bayesbinn.runtime as runtime\n"
        "x = np.random.default_rng(0).standard_normal((2, 8, 512, 512), np.float32)\n"
        "model = runtime.load(sys.argv[1], threads=2, backend='native')\n"
        "limit(44)\n"
        "results = []\n"
        "for rows in (2, 1, 2, 1):\n"
        "    try:\n"
        "        results.append(model.outputs(x[:rows]))\n"
        "    except MemoryError:\n"
        "        results.append(None)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)\n"
        "expected = runtime.load(sys.argv[1], threads=1, backend='native').outputs(x[:1])\n"
        "print([y is not None and np.array_equal(y, expected) for y in results])"
    )
    assert run(program, tmp_path / "m.safetensors") == "[False, True, False, True]"


def test_threads_that_cannot_be_started_are_done_without(tmp_path: Path) -> None:
    g = GraphBuilder((40,), 1, 0)
    g.add("linear", shape=(65, 40), tensors={"weight": g.weight((65, 40))})
    write(tmp_path / "m.safetensors", g.model())
    program = LIMIT + (
        "import sys, threading, numpy as np, bayesbinn.runtime as runtime\n"
        "x = np.random.default_rng(0).standard_normal((50, 40), np.float32)\n"
        "expected = runtime.load(sys.argv[1], threads=1, backend='native').outputs(x)\n"
        "model = runtime.load(sys.argv[1], threads=64, backend='native')\n"
        "threading.stack_size()\n"
        "limit(40)\n"  # a stack takes 8 MB of address space
        "for _ in range(3): assert np.array_equal(model.outputs(x), expected)\n"
        "print('same', 1 < len(list(__import__('os').scandir('/proc/self/task'))) < 64)"
    )
    assert run(program, tmp_path / "m.safetensors", timeout=60) == "same True"


# ---- forks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_while_another_thread_predicts(threads: int, tmp_path: Path) -> None:
    """Children predict, drop the model and exit; the parent continues."""
    g = GraphBuilder((200,), 1, 0)
    g.add("linear", shape=(300, 200), tensors={"weight": g.weight((300, 200))})
    write(tmp_path / "m.safetensors", g.model())
    program = (
        "import os, signal, sys, threading, numpy as np, bayesbinn.runtime as runtime\n"
        f"model = runtime.load(sys.argv[1], threads={threads}, backend='native')\n"
        "x = np.random.default_rng(0).standard_normal((2000, 200), np.float32)\n"
        "expected, ending = model.outputs(x), False\n"
        "def work():\n"
        "    while not ending: model.outputs(x)\n"
        "thread = threading.Thread(target=work); thread.start()\n"
        "codes = []\n"
        "for _ in range(6):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        signal.alarm(20)\n"
        "        same = all(np.array_equal(model.outputs(x[:n]), expected[:, :n]) for n in (10, 2000, 10))\n"
        "        del model\n"
        "        os._exit(0 if same else 1)\n"
        "    codes.append(os.waitpid(pid, 0)[1])\n"
        "ending = True; thread.join()\n"
        "assert np.array_equal(model.outputs(x), expected)\n"
        "print(codes)"
    )
    assert run(program, tmp_path / "m.safetensors", timeout=200) == str([0] * 6)


# ---- files that change -------------------------------------------------------------------------------


def constant(sign: float, names: tuple[str, str], inputs: int = 3000) -> ModelFile:
    """A network whose weights all have one sign, and classes that name it."""
    weight = pack_rows(np.full((2, inputs), sign))
    node = Node("linear", (0,), "", {"shape": (2, inputs)}, {"weight": "w"})
    return ModelFile(Graph((inputs,), (node,), classes=names), {"w": weight})


READER = (
    "import sys, time, numpy as np, bayesbinn.runtime as runtime\n"
    "from bayesbinn.errors import InvalidFile\n"
    "seen, refused, mixed = set(), 0, 0\n"
    "start = time.monotonic()\n"
    "while time.monotonic() < start + 2 or not (len(seen) == 2 or refused) and time.monotonic() < start + 30:\n"
    "    try:\n"
    "        model = runtime.load(sys.argv[1], threads=1, backend='native')\n"
    "    except InvalidFile:\n"
    "        refused += 1; continue\n"
    "    seen.add(model.classes)\n"
    "    x = np.ones((1, *model.input_shape), np.float32)\n"
    "    mixed += (model.outputs(x)[0, 0, 0] > 0) != (model.classes == ('plus', 'one'))\n"
    "print(len(seen), bool(refused), mixed)"
)


def in_background(program: str, *arguments: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)])


def test_a_file_that_is_replaced_while_it_is_read_is_one_or_the_other(tmp_path: Path) -> None:
    path, first, second = (tmp_path / name for name in ("m.safetensors", "a", "b"))
    write(first, constant(1.0, ("plus", "one")))
    write(second, constant(-1.0, ("minus", "one")))
    write(path, constant(1.0, ("plus", "one")))
    program = (
        "import os, shutil, sys\n"
        "path, *sources = sys.argv[1:]\n"
        "while True:\n"
        "    for source in sources:\n"
        "        shutil.copyfile(source, path + '.new'); os.replace(path + '.new', path)"
    )
    replacer = in_background(program, path, first, second)
    try:
        assert run(READER, path) == "2 False 0"
    finally:
        replacer.kill()
        replacer.wait()


def test_a_file_truncated_in_place_is_rejected_without_a_bus_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, constant(1.0, ("plus", "one"), inputs=800_000))
    program = (
        "import os, sys\n"
        "content = open(sys.argv[1], 'rb').read()\n"
        "file = os.open(sys.argv[1], os.O_WRONLY)\n"
        "while True:\n"
        "    os.ftruncate(file, 600)\n"
        "    os.pwrite(file, content, 0)"
    )
    cutter = in_background(program, path)
    try:
        assert run(READER, path).split()[1:] == ["True", "0"]
    finally:
        cutter.kill()
        cutter.wait()


def test_what_inspect_says_is_all_of_one_file(tmp_path: Path) -> None:
    """Checksum and size come from the bytes that were checked, not from a second look at the path."""
    from bayesbinn.modelfile.container import read

    path = tmp_path / "m.safetensors"
    write(path, constant(1.0, ("plus", "one")))
    model, size = read(path), path.stat().st_size
    os.truncate(path, 3)
    assert model.size == size and len(model.checksum) == 64
    assert model.tensors["w"].all()
