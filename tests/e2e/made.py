"""The vocabulary of the end-to-end tests: how a command line is run, and what its results are looked at with."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import LIMIT, ROOT, Capsys, Completed, Patch, environment, run_process
from tests.launch import Command, here, launch, refused, threads
from tests.threads import run_module
from zofl_mpi.report.same import differences
from zofl_mpi.run import records
from zofl_mpi.run.records import checkpoint_path


def wait_until(holds: Callable[[], bool]) -> None:
    """Ends when this holds."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, "the run did not get going"
        time.sleep(0.02)


def rounds_of(path: Path | str) -> int:
    """How many rounds a result holds; 0 while there is none that can be read."""
    try:
        return records.load(path).length
    except Exception:
        return 0
