"""One run in a process of its own: ``python -m bayesbinn.runs.process``, started by `bayesbinn.sweeps.executor`.

The request is a line of JSON on standard input, which then stays open. When it is closed, because the run shall stop
or because the parent is no more, the run writes its checkpoint and ends. Output goes to the run's log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from bayesbinn.train.lock import RunLock

FAILED, STOPPED, TERMINATED = 1, 130, 143
"""Exit codes: an error, asked to stop by the parent, asked to stop by SIGTERM."""
GRACE = 120.0
"""Seconds for the batch or the evaluation under way, after which the process ends without a checkpoint."""


def main() -> int:
    """Train one run; the exit code tells whether it finished, failed or stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    stopping, terminated = threading.Event(), threading.Event()

    def terminate(*_: Any) -> None:
        terminated.set()
        stopping.set()

    signal.signal(signal.SIGTERM, terminate)  # a cluster's walltime
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_watch, args=(stopping,), daemon=True).start()
    lock = RunLock(Path(request["folder"]))
    if not lock.acquire(should_stop=stopping.is_set, tell=lambda text: print(text, flush=True)):
        return TERMINATED if terminated.is_set() else STOPPED
    try:
        code = _train(request, lock, stopping)
        return TERMINATED if code == STOPPED and terminated.is_set() else code
    except Exception as error:
        traceback.print_exc()
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return FAILED
    finally:
        lock.release()


def _watch(stopping: threading.Event) -> None:
    while os.read(0, 1):
        pass
    stopping.set()
    time.sleep(GRACE)
    os._exit(STOPPED)


def _train(request: dict[str, Any], lock: RunLock, stopping: threading.Event) -> int:
    import torch

    torch.set_num_threads(request["threads"])
    from bayesbinn.experiments.config import validated
    from bayesbinn.files import clear_leftovers
    from bayesbinn.runs.open import open_any
    from bayesbinn.train.progress import Progress, RunStopped, row_text

    clear_leftovers(Path(request["folder"]))
    experiment = validated(json.loads(request["config"]), request["name"])
    data_dir = request["data_dir"]
    run = open_any(experiment, Path(request["folder"]), Path(data_dir) if data_dir else None)
    run.may_write = lock.check
    if run.where_to_resume:
        print(f"resuming in {run.where_to_resume}", flush=True)

    def tell(progress: Progress) -> None:
        if progress.row is not None:
            print(f"epoch {progress.epoch}/{progress.epochs}  {row_text(progress.row)}", flush=True)

    try:
        run.train(stop_after=request["stop_after"], on_progress=tell, should_stop=stopping.is_set)
    except RunStopped as stopped:
        print(stopped)
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
