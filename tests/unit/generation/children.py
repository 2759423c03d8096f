"""Child processes for the tests: `python -m tests.unit.generation.children <what> [folder]`, in the production frame."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from include.generation.child import run_child
from include.generation.engine import EngineStartError
from include.settings import SettingsError


def _grandchild(folder: Path, *, stubborn: bool = False) -> None:
    """A process like an engine core: does not watch anyone, writes its process id, and may ignore SIGTERM."""
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    code = f"{ignore}import os, time; open(r'{folder}/grandchild', 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code])
    while not (folder / "grandchild").exists():
        time.sleep(0.02)
    (folder / "child").write_text(str(os.getpid()))


def stage() -> dict[str, Any]:
    what, folder = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ".")
    assert threading.current_thread() is threading.main_thread()  # vLLM registers signal handlers
    if what == "ok":
        sys.stdout.write("50%|\r100%|\rdone\n")
        return {"task": "title", "requests_per_s": 4.5, "rate": float("nan"), "argument": sys.argv[2]}
    if what == "large":
        return {"requests": 3, "texts": ["x" * 100] * 1000}
    if what == "environment":
        return {name: value for name, value in os.environ.items() if name.startswith(("AIRFLOW", "SECRET", "EXTRA"))}
    if what == "settings":
        raise SettingsError("no enhancement task 'x'")
    if what == "busy":
        raise EngineStartError("GPU 0 is leased by process 4711", kind="gpu_busy")
    if what == "bug":
        raise ZeroDivisionError("a bug")
    if what == "leave":  # ends while a process of its own still runs
        _grandchild(folder, stubborn=True)
        return {"left": True}
    _grandchild(folder, stubborn=what == "stubborn")
    try:
        time.sleep(600)
    finally:
        (folder / "unwound").write_text("finished rows are written here")
    return {}


if __name__ == "__main__":
    if sys.argv[1] == "crash":
        os.abort()
    run_child(stage)
