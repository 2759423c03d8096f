"""`python -m include.batch` on a stub engine, for tests that need its process. STUB_SECONDS delays each answer."""

from __future__ import annotations

import os
import sys
import time

from include.batch import run as run_module
from include.batch.__main__ import main
from include.generation import session as session_module
from include.generation.engine import Output, Request
from include.generation.session import Session
from tests.generating import Engines, say


def answer(request: Request) -> Output | None:
    time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
    return say("Fine.")(request)


if __name__ == "__main__":
    for module in (run_module, session_module):
        module.check_profile = lambda *_, **__: None  # type: ignore[attr-defined]
    one = {"batch_size": 1, "engine_args": {}}
    run_module.Session = lambda p: Session(p.model_copy(update=one), open_engine=Engines(answer))  # type: ignore
    sys.exit(main(["run", *sys.argv[1:]]))
