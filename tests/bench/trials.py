"""Optuna's trials in one process against one command each: python -m tests.bench.trials [TRIALS]"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import optuna

import zofl_mpi as zofl

WORDS = {"m": 5, "rounds": 20, "seed": 1, "quiet": True}


def here(gamma: float, out: Path) -> zofl.Result:
    return zofl.simulate("fedavg", "softmax", "digits", family="zo_hfl", gamma_local=gamma, out=out, **WORDS)


def typed(gamma: float, out: Path) -> zofl.Result:
    words = f"--method fedavg --m 5 --rounds 20 --seed 1 --quiet --gamma-local {gamma!r} --out".split()
    subprocess.run([sys.executable, "-m", "zofl_mpi.zo_hfl", *words, out], check=True, stdout=subprocess.DEVNULL)
    return zofl.load(out)


def search(run: Callable[[float, Path], zofl.Result], trials: int) -> tuple[float, dict[str, float], float]:
    """Seconds, the best trial's parameters, its value."""
    with tempfile.TemporaryDirectory() as folder:

        def objective(trial: optuna.Trial) -> float:
            gamma = trial.suggest_float("gamma", 0.001, 1.0, log=True)
            return run(gamma, Path(folder) / f"{trial.number}.h5").row["test_loss"]

        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
        began = time.perf_counter()
        study.optimize(objective, trials)
        return time.perf_counter() - began, study.best_params, study.best_value


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    (one, *best), (many, *same) = search(here, trials), search(typed, trials)
    print(f"{trials} trials: one process {one:.1f} s, a command each {many:.1f} s, ratio {one / many:.2f}")
    print(f"the same best: {best == same}, {best}")


if __name__ == "__main__":
    main()
