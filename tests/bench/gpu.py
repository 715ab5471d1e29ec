"""What a GPU gives, and whether it computes right: `python -m tests.bench.gpu [--device auto] [--tiny] [--json FILE]`.

First each kernel path beside float64 on the CPU, and the calls that only a GPU can check; then times, samples a second,
kernels and memory of ZO-HFL, FedAvg, FedRZO, HERON and SplitFed, and the demands on them, met or not. On one GPU in
less than eight minutes; nothing is built or fetched, data are made up in the real shapes. Without a GPU the same code
runs on the CPU, where nothing is judged: take --tiny.

A wrong result, or a part that failed, ends with status 1; the other parts are run all the same. To keep a table:

    python -m tests.bench.gpu --json analysis/results/bench_gpu.json     # and bench_gpu.txt beside it
"""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from zofl_mpi.engine import device
from zofl_mpi.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all sections; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to compute")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: a try of all code, in a minute on a CPU")
    parser.add_argument("--json", metavar="FILE", help="write all of it there, and the table beside it as .txt")
    parser.add_argument("--only", metavar="WORD", default="", help="sections whose title has this word")
    options = parser.parse_args(arguments)
    try:
        chosen = device.select(options.device)
    except UserError as exc:
        parser.error(str(exc))
    if chosen != "cpu":
        device.reproducible()  # as a run does
    from tests.gpu import correct, report, selfcheck, speed

    bench = report.Bench(chosen, options.tiny, machine(chosen))
    for title, (section, limit) in {**correct.SECTIONS, **selfcheck.SECTIONS, **speed.SECTIONS}.items():
        if options.only in title:
            bench.run(title, section, limit)
            if options.json:  # after each section: a machine that goes takes one section along
                written(bench, Path(options.json))
    print(bench.table())
    return bench.status


def written(bench: object, path: Path) -> None:
    """The result as JSON, and as text beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bench.document(), indent=1) + "\n")  # type: ignore[attr-defined]
    path.with_suffix(".txt").write_text(bench.table() + "\n")  # type: ignore[attr-defined]


def machine(chosen: str) -> dict[str, str]:
    """Hardware, versions, date."""
    import numpy as np
    import torch

    from zofl_mpi.run import records

    gpu = {}
    if chosen != "cpu":
        known = torch.cuda.get_device_properties(chosen)
        gpu = {
            "GPU": f"{known.name}, {known.total_memory / 2**30:.1f} GiB, {known.multi_processor_count} processors",
            "driver": driver(),
            "CUDA": f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
        }
    commit = str(records.provenance().get("git_commit", ""))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": chosen,
        **gpu,
        "CPU": f"{processor()}, {len(device.cores())} cores, {torch.get_num_threads()} threads",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}",
        **({"commit": commit} if commit else {}),
    }


def driver() -> str:
    """The version of NVIDIA's driver; "unknown" where nobody tells."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.splitlines()[0].strip() if told.strip() else "unknown"


def processor() -> str:
    """Name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
