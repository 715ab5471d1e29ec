"""The grid files of the tests: small runs on 8 x 8 digits, a few rounds each."""

from __future__ import annotations

import json
from typing import Any

Entries = dict[str, dict[str, dict[str, Any]]]
"""Axis -> entry -> what it sets."""


def toml(module: str, fixed: dict[str, Any], axes: Entries, head: str = "", tail: str = "") -> str:
    """A grid file; what an axis sets is not fixed."""
    lines = [f'module = "zofl_mpi.{module}"', *([head] if head else []), "[fixed]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in fixed.items() if key not in axes]
    for axis, entries in axes.items():
        for entry, changes in entries.items():
            lines += [f'[axes.{axis}."{entry}"]', *(f"{key} = {json.dumps(value)}" for key, value in changes.items())]
    return "\n".join([*lines, *([tail] if tail else [])]) + "\n"


# --- [A]

CELLS = {"a1000-b0.9": {"alpha": 1000.0, "beta": 0.9}, "a0.1-b0.5": {"alpha": 0.1, "beta": 0.5}}
METHODS = {"zo_hfl": {"method": "zo_hfl"}, "fedavg": {"method": "fedavg"}}
READINGS: dict[str, dict[str, Any]] = {"default": {}, "mu-10": {"mu": 10.0}, "pixels-raw": {"pixels": "raw"}}
"""Of the second only ZO-HFL's runs: the grid leaves FedAvg's out."""
SEEDS = {"1": {"seed": 1}, "2": {"seed": 2}}
SOFTMAX = {
    "problem": "softmax",
    "data": "digits",
    "m": 4,
    "rounds": 3,
    "eval_every": 2,
    "beta": 1.0,
    "tau": 1,
    "gamma": 0.5,
}
STEPS = {"low": {"gamma": 0.01}, "high": {"gamma": 1.0}}
OF_A: dict[str, Entries] = {
    "a_table": {"seed": SEEDS, "method": METHODS, "cell": CELLS},
    "a_taus": {"cell": CELLS, "tau": {"2": {"tau": 2}, "9": {"tau": 9}}, "seed": SEEDS},
    "a_readings": {"cell": CELLS, "reading": READINGS, "method": METHODS, "seed": SEEDS},
    "a_steps": {"cell": CELLS, "method": METHODS, "step": STEPS, "seed": SEEDS},
    "a_control": {"method": METHODS | {"server_sgd": {"method": "server_sgd"}}, "seed": SEEDS},
}
ALONE = {"method": "server_sgd", "gamma": 0.0, "personal": True}
FINE_TUNED = {"method": "fedavg", "personal": True}
TRIED = {
    f"{method}+{word}-{step}": flags | {flag: step}
    for method, flags, word, flag, steps in (
        ("zo_hfl", {"method": "zo_hfl"}, "local", "gamma_local", (0.01, 0.1, 0.3)),
        ("fedavg", FINE_TUNED, "own", "personal_gamma", (0.003, 0.03, 0.3)),
    )
    for step in steps
}
"""Steps are tried on seed 1, FedAvg's with its usual local step; the longest, which differ by cell, are best."""
LONGEST = {
    "a1000-b0.9": ("zo_hfl+local-0.3", "fedavg+own-0.3"),
    "a0.1-b0.5": ("zo_hfl+local-0.1", "fedavg+own-0.03"),
}
TUNED = {
    f"digits+{cell}+{setting.split('+')[0]}": CELLS[cell] | TRIED[setting]
    for cell, settings in LONGEST.items()
    for setting in settings
}
DIGITS = {"digits": {"data": "digits"}}
PRINTED: dict[str, dict[str, Any]] = {"zo_hfl": {"method": "zo_hfl"}, "fedavg": FINE_TUNED, "alone": ALONE}
OF_PERSONAL: dict[str, Entries] = {
    "printed": {"seed": SEEDS, "data": DIGITS, "cell": CELLS, "method": PRINTED},
    "tuned": {"seed": SEEDS, "setting": TUNED},
    "steps": {"seed": {"1": SEEDS["1"]}, "data": DIGITS, "cell": CELLS, "setting": TRIED},
}
UNTRIED = """[[skip]]
cell = "a1000-b0.9"
setting = "zo_hfl+local-0.1"
[[skip]]
cell = "a0.1-b0.5"
setting = ["zo_hfl+local-0.3", "fedavg+own-0.3"]
"""


def of_personal(name: str) -> str:
    """A grid of OF_PERSONAL."""
    axes = OF_PERSONAL[name]
    places = "-".join("{" + axis + "}" for axis in axes)
    fixed = SOFTMAX | ({} if name == "printed" else {"validation": 0.2})
    return toml(
        "zo_hfl", fixed, axes, f'optional = ["beta", "tau"]\nname = "{name}-{places}"', UNTRIED * (name == "steps")
    )


SKIP = '[[skip]]\nmethod = "fedavg"\nreading = "mu-10"'


def of_a(name: str) -> str:
    """A grid of OF_A."""
    tail = SKIP if name == "a_readings" else ""
    return toml("zo_hfl", SOFTMAX, OF_A[name], 'optional = ["beta", "tau"]', tail)


# --- [B]

FEDRZO = 'problem = "relu_net"\ndata = "digits"\nm = 3\nrounds = 5\neval_every = 2\nbatch = 8\n'
OF_B = {
    "b_figure": f"""module = "zofl_mpi.fedrzo"
[fixed]
method = "fedrzo_nn"
gamma = 0.001
{FEDRZO}
[axes]
seed = [1, 2]
eta = [0.1, 0.01]
H = [1, 6]
""",
    "b_scales": f"""module = "zofl_mpi.fedrzo"
[fixed]
method = "fedrzo_nn"
{FEDRZO}
[axes]
seed = [1, 2]
H = [6]
[axes.reading]
mean = {{ loss-scale = "mean", gamma = 0.001 }}
sum = {{ loss-scale = "sum", gamma = 0.001 }}
""",
    "b_methods": f"""module = "zofl_mpi.fedrzo"
[fixed]
{FEDRZO}
[axes]
seed = [1, 2]
rectifier = [10, 1]
[axes.method]
fedrzo = {{ method = "fedrzo_nn", H = 2 }}
fedrzo-16 = {{ method = "fedrzo_nn", H = 2, n-p = 3 }}
fedavg = {{ method = "fedavg", tau = 2, schedule-h = "constant", schedule-local = "constant" }}
scaffnew = {{ method = "scaffnew", p = 0.5 }}
[axes.step]
"1e-4" = {{ gamma = 1e-4 }}
"1e-3" = {{ gamma = 1e-3 }}
"0.001" = {{ gamma-local = 0.001 }}
"0.05" = {{ gamma-local = 0.05 }}
[[skip]]
method = ["fedrzo", "fedrzo-16"]
rectifier = 1
[[skip]]
method = ["fedrzo", "fedrzo-16"]
step = ["0.001", "0.05"]
[[skip]]
method = ["fedavg", "scaffnew"]
step = ["1e-4", "1e-3"]
[[skip]]
method = "fedrzo-16"
step = "1e-4"
[[skip]]
method = "scaffnew"
step = "0.001"
""",
}
BILEVEL = {"method": "fedrzo_bl", "data": "digits", "m": 3, "rounds": 3, "eval_every": 2, "batch": 0}
STEPS_OF_B = {"1": {"H": 1}, "5": {"H": 5}}
GOALS: dict[str, dict[str, Any]] = {"fair": {"lam": 0.1}, "mean": {"lam": 1000.0, "y_set": "simplex"}}
FEDNEST = """module = "zofl_mpi.fedrzo"
optional = ["eta", "lower", "T-lower", "T", "N", "x0"]
[fixed]
m = 3
n = 4
rounds = 5
eval-every = 2
batch = 8
batch-lower = 8
H = 2
x0 = "random"
exact = true
eta = 0.01
[axes]
seed = [1, 2, 3, 11]
[axes.problem]
saddle = { problem = "saddle", T-lower = "2", T = 2, N = 1 }
shares = { problem = "shares", lower = "exact" }
[axes.method]
fedrzo = { method = "fedrzo_bl" }
fednest = { method = "fednest" }
[axes.step]
"0.001" = { gamma = 0.001 }
"0.03" = { gamma = 0.03 }
[[skip]]
problem = "shares"
method = "fednest"
"""
LEVELS: dict[str, tuple[dict[str, Any], Entries]] = {
    "hyper": (
        {"problem": "hyperparameter", "eta": 0.005, "gamma": 0.005, "lower": "exact"},
        {"H": STEPS_OF_B},
    ),
    "fair": (
        {"problem": "fair", "gamma": 1e-3, "lower": "exact", "exact": True},
        {"H": STEPS_OF_B, "goal": GOALS},
    ),
}


def of_levels(name: str) -> str:
    """A grid of LEVELS."""
    fixed, axes = LEVELS[name]
    head = f'name = "{name}-{"-".join("{" + axis + "}" for axis in axes)}-s{{seed}}"'
    tail = '[[skip]]\ngoal = "mean"\nH = "1"' if "goal" in axes else ""
    return toml("fedrzo", BILEVEL | fixed, {"seed": {str(s): {"seed": s} for s in (1, 2, 3)}} | axes, head, tail)


# --- [C]

HERON = """module = "zofl_mpi.heron_sfl"
[fixed]
data = "digits"
width = 2
batch = 16
lr-server = 1e-2
lr-client = 1e-2
"""
OF_C = {
    "c_methods": f"""{HERON}stages = [1, 1]
m = 3
h = 2
rounds = 5
eval-every = 2
min-samples = 16
[axes]
seed = [1, 2]
[axes.cell]
iid = {{}}
"alpha0.3" = {{ alpha = 0.3 }}
[axes.method]
heron = {{ method = "heron" }}
heron-frozen = {{ method = "heron", freeze = "client" }}
heron-still = {{ method = "heron", lr-client = 0.0 }}
cse_fsl = {{ method = "cse_fsl" }}
fsl_sage = {{ method = "fsl_sage", buffer = 40, align-epochs = 2, l = 3 }}
sflv2 = {{ method = "sflv2" }}
[[skip]]
cell = "alpha0.3"
method = ["heron-still", "cse_fsl", "fsl_sage"]
""",
    "c_pays": """module = "zofl_mpi.heron_sfl"
[fixed]
problem = "split_cnn"
data = "digits"
channels = [4, 4, 4]
strides = [2, 1, 1]
cut = 2
m = 2
batch = 16
h = 3
rounds = 4
eval-every = 2
validation = 0.1
[axes]
seed = [1, 2]
[axes.setting]
linear = {}
pooled = { head = "pooled" }
[axes.method]
heron-frozen = { method = "heron", freeze = "client" }
heron = { method = "heron", probe-gradient = true }
heron-head = { method = "heron", head-gradient = "exact", n-p = 2, probe-gradient = true }
heron-head-jvp = { method = "heron", head-gradient = "exact", n-p = 2, estimate = "jvp", probe-gradient = true }
heron-n2 = { method = "heron", head-gradient = "exact", exact-layers = 2, rest = "frozen" }
cse_fsl = { method = "cse_fsl" }
sflv2 = { method = "sflv2" }
[axes.local]
"local-none" = {}
"local-1e-3" = { lr-client = 1e-3 }
"local-1e-2" = { lr-client = 1e-2 }
[axes.server]
"server-1e-2" = { lr-server = 1e-2 }
"server-3e-2" = { lr-server = 3e-2 }
[[skip]]
method = "heron-frozen"
local = ["local-1e-3", "local-1e-2"]
[[skip]]
method = ["heron", "heron-head", "heron-head-jvp", "heron-n2", "cse_fsl", "sflv2"]
local = "local-none"
[[skip]]
method = ["heron", "heron-head", "heron-head-jvp", "heron-n2", "cse_fsl", "sflv2"]
server = "server-1e-2"
[[skip]]
setting = "pooled"
method = ["heron", "heron-head", "heron-head-jvp", "heron-n2"]
""",
    "c_clients": f"""{HERON}stages = [1, 1]
method = "heron"
rounds = 2
eval-every = 2
min-samples = 16
[axes]
seed = [1, 2]
[axes.cell]
"alpha0.3" = {{ m = 4, h = 3, alpha = 0.3 }}
alpha10 = {{ m = 4, h = 3, alpha = 10.0 }}
m4 = {{ m = 4, h = 3 }}
m6 = {{ m = 6, h = 2 }}
"beta0.5" = {{ m = 6, h = 4, beta = 0.5 }}
[axes.method]
heron = {{}}
heron-frozen = {{ freeze = "client" }}
""",
    "c_estimates": f"""{HERON}stages = [1, 1, 1]
method = "heron"
m = 3
h = 2
rounds = 2
eval-every = 2
[axes]
seed = [1, 2]
[axes.size]
size1 = {{ cut = 1 }}
size2 = {{ cut = 2 }}
[axes.cell]
frozen = {{ freeze = "client" }}
"mu1e-3" = {{ mu = 1e-3 }}
mu10 = {{ mu = 10.0 }}
np3 = {{ mu = 1e-3, n-p = 3 }}
""",
}

TEXTS = """module = "zofl_mpi.heron_sfl"
[fixed]
problem = "split_gpt2"
data = "@TEXTS@"
data-dir = "@DATA@"
vocabulary = "e2e"
model = "random:tiny"
m = 2
batch = 4
h = 1
eval-samples = 8
lr-server = 1e-2
"""
"""@TEXTS@: a folder of small texts; @DATA@: the one with GPT-2's tokens."""
OF_TEXTS = {
    "c_lm": f"""{TEXTS}rounds = 3
eval-every = 2
[axes]
seed = [1, 2]
[axes.start]
pretrained = {{}}
random = {{ lora-rank = 2 }}
[axes.method]
heron = {{ method = "heron", lr-client = 1e-2 }}
heron-frozen = {{ method = "heron", lr-client = 1e-2, freeze = "client" }}
splitlora = {{ method = "splitlora", lr-client = 1e-2, warmup = 0 }}
decomfl = {{ method = "decomfl", lr-client = 1e-2, h = 1 }}
[[skip]]
start = "random"
method = ["splitlora", "decomfl"]
""",
    "c_lm_depth": f"""{TEXTS}rounds = 2
eval-every = 2
lr-client = 1e-2
[axes]
seed = [1]
[axes.cut]
cut1 = {{ cut = 1 }}
cut2 = {{ cut = 2 }}
[axes.depth]
depth0 = {{ auxiliary-blocks = 0 }}
depth1 = {{ auxiliary-blocks = 1 }}
[axes.method]
heron = {{ method = "heron" }}
cse_fsl = {{ method = "cse_fsl" }}
heron-frozen = {{ method = "heron", freeze = "client" }}
[[skip]]
depth = "depth0"
method = "heron-frozen"
[[skip]]
cut = "cut2"
depth = "depth1"
method = "cse_fsl"
""",
    "c_lm_steps": f"""{TEXTS}rounds = 1
[axes]
seed = [1]
[axes.method]
cse_fsl = {{ method = "cse_fsl" }}
heron = {{ method = "heron" }}
[axes.local]
"c1e-3" = {{ lr-client = 1e-3 }}
"c1e-2" = {{ lr-client = 1e-2 }}
[axes.radius]
radius-none = {{}}
"mu1e-3" = {{ mu = 1e-3 }}
[[skip]]
method = "heron"
radius = "radius-none"
[[skip]]
method = "cse_fsl"
radius = "mu1e-3"
""",
}
GRIDS = {name: {name: of_a(name)} for name in OF_A}
GRIDS |= {name: {name: text} for name, text in (OF_B | OF_C | OF_TEXTS).items()}
GRIDS |= {
    "a_personal": {name: of_personal(name) for name in OF_PERSONAL},
    "b_fednest": {"b_fednest": FEDNEST},
}
GRIDS |= {"b_levels": {name: of_levels(name) for name in LEVELS}}
"""{name: {file: text}}."""
