"""A section of the GPU check: `python -m tests.bench.gpu SECTION... [--device auto] [--tiny] [--seconds S]`.

jobs/gpu_check.sh runs them all, each in a process with a limit of its own. The first three compare kernel paths with
float64 on the CPU, the self-checks try calls that only a GPU can check, the others measure. Data are made up in the
real shapes: nothing is fetched. Without a GPU the same code runs on the CPU, where nothing is judged: take --tiny.
Exit status 1 where something is wrong, was late, or lacked a package.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from tests.gpu.report import Bench, Late
from zofl_mpi.engine import device, memory
from zofl_mpi.errors import UserError

NAMES = (
    *("resnet", "gpt2", "cnn"),
    *("selfcheck-split", "selfcheck-gpu", "selfcheck-networks"),
    *("speed-resnet", "speed-gpt2", "speed-zo_hfl", "speed-fedavg", "speed-fedrzo"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the sections; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=NAMES, metavar="SECTION", help=", ".join(NAMES))
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to compute")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: a try of all code, in a minute on a CPU")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each section, about (default: 60)")
    options = parser.parse_args(arguments)
    try:
        chosen = device.select(options.device)
    except UserError as exc:
        parser.error(str(exc))
    if chosen == "cpu":
        device.limit_threads(1)  # either as a run does
    else:
        device.reproducible()
    print(machine(chosen), flush=True)
    bench = Bench(chosen, options.tiny)
    for name in options.sections:
        bench.end = time.monotonic() + options.seconds
        run(bench, name)
    return int(bench.wrong > 0)


def machine(chosen: str) -> str:
    """The device, versions, the commit."""
    import torch

    from zofl_mpi.run import records

    commit = str(records.provenance().get("git_commit", "unknown"))
    cuda = f", CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}" if chosen != "cpu" else ""
    return f"{device.describe(chosen)}, torch {torch.__version__}{cuda}, commit {commit}"


def run(bench: Bench, name: str) -> None:
    """Runs a section; whatever becomes of it, what it has found is on paper."""
    try:
        from tests.gpu import correct, selfcheck, speed

        {**correct.SECTIONS, **selfcheck.SECTIONS, **speed.SECTIONS}[name](bench)
    except Late:
        bench.failed(name, "late: its time was over")
    except Exception as exc:  # a client's step wraps what it raises
        traceback.print_exc()
        bench.failed(name, memory.shortage(exc) or f"{type(exc).__name__}: {exc}".strip().partition("\n")[0])


if __name__ == "__main__":
    sys.exit(main())
