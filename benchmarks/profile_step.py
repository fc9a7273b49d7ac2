"""Where a BayesBiNN step on the MNIST MLP spends its time, and whether torch.compile helps.

python benchmarks/profile_step.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from training import TASKS, Contestant, interleave, medians_of, ratio


def operations(steps: int = 10) -> list[str]:
    """The operations with the most self time, in milliseconds per step."""
    task = TASKS["mnist"]
    contestant = Contestant(task, "bayesbinn")
    data, labels = torch.randint(256, (10_000, *task.shape), dtype=torch.uint8), torch.randint(10, (10_000,))

    def step() -> None:
        rows = torch.randint(10_000, (task.batch_size,))
        contestant.train((data[rows].float() / 255 - 0.1307) / 0.3081, labels[rows])

    for _ in range(3):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            step()
    # The self time of the step itself, without its operations, is Python and the native kernels.
    averages = sorted(profiled.key_averages(), key=lambda each: -each.self_cpu_time_total)
    lines = ["| operation | ms per step | calls per step |", "|-|-:|-:|"]
    return lines + [
        f"| {each.key} | {each.self_cpu_time_total / 1e3 / steps:.2f} | {each.count / steps:g} |"
        for each in averages[:14]
    ]


def compiled(rounds: int = 20, seconds: float = 60) -> list[str]:
    """A step with the model compiled by the default backend, compared with the plain one."""
    task = TASKS["mnist"]
    x, y = torch.randn(task.batch_size, *task.shape), torch.randint(10, (task.batch_size,))
    plain, other = Contestant(task, "bayesbinn"), Contestant(task, "bayesbinn")
    network = torch.compile(other.model)

    def train_compiled() -> float:
        from training import timed

        return timed(lambda: other.step(lambda: F.cross_entropy(network(x), y).backward()))

    times = interleave({"plain": lambda: plain.train(x, y), "compiled": train_compiled}, rounds, seconds)
    return [
        f"torch.compile: {1e3 * medians_of(times)['compiled']:.1f} ms per step, "
        f"{ratio(times, 'compiled', 'plain'):.3f} × the plain one."
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for profile.md")
    arguments = parser.parse_args()
    text = "\n".join(["# A BayesBiNN step on the MNIST MLP", "", *operations(), "", *compiled(), ""])
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "profile.md").write_text(text)


if __name__ == "__main__":
    main()
