"""One run in a separate process: ``python -m bayesbinn.runs.process``, started by `bayesbinn.sweeps.executor`.

The request is a line of JSON on standard input, which then stays open. When it closes, because the run should stop or
because the parent has died, the run writes its checkpoint and ends. Output goes to the run's log.
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

from bayesbinn.train.folder import RunFolder
from bayesbinn.train.memory import keep_freed_memory
from bayesbinn.train.progress import RunStopped

FAILED, STOPPED, TERMINATED = 1, 130, 143
"""Exit codes: an error, asked to stop by the parent, asked to stop by SIGTERM."""
GRACE = 120.0
"""Seconds to finish the current batch or evaluation; after that the process ends without a checkpoint."""


def main() -> int:
    """Train one run; the exit code says whether it finished, failed or stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    stopping, terminated = threading.Event(), threading.Event()

    def terminate(*_: Any) -> None:
        terminated.set()
        stopping.set()

    signal.signal(signal.SIGTERM, terminate)  # a cluster's walltime
    keep_freed_memory()
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_watch, args=(stopping,), daemon=True).start()
    place = Path(request["folder"])
    try:
        with RunFolder.awaited(place, should_stop=stopping.is_set, tell=lambda text: print(text, flush=True)) as folder:
            _train(request, folder, stopping)
            return 0
    except RunStopped as stopped:
        print(stopped)
        return TERMINATED if terminated.is_set() else STOPPED
    except Exception as error:
        traceback.print_exc()
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return FAILED


def _watch(stopping: threading.Event) -> None:
    while os.read(0, 1):
        pass
    stopping.set()
    time.sleep(GRACE)
    os._exit(STOPPED)


def _train(request: dict[str, Any], folder: RunFolder, stopping: threading.Event) -> None:
    import torch

    torch.set_num_threads(request["threads"])
    from bayesbinn.experiments.config import validated
    from bayesbinn.runs.open import open_any
    from bayesbinn.train.progress import Progress, row_text

    experiment = validated(json.loads(request["config"]), request["name"])
    data_dir = request["data_dir"]
    run = open_any(experiment, folder, Path(data_dir) if data_dir else None, request.get("track", ()))
    if run.where_to_resume:
        print(f"resuming in {run.where_to_resume}", flush=True)

    def tell(progress: Progress) -> None:
        if progress.row is not None:
            print(f"epoch {progress.epoch}/{progress.epochs}  {row_text(progress.row)}", flush=True)

    run.train(stop_after=request["stop_after"], on_progress=tell, should_stop=stopping.is_set)


if __name__ == "__main__":
    sys.exit(main())
