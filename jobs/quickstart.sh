#!/usr/bin/env bash
# From a fresh clone to a page: the environment, ZO-HFL on the embedded digits with one server and ten clients
# (11 MPI ranks, whatever the number of cores), and a page about the run, for any browser. Further flags go to the run:
#
#   bash jobs/quickstart.sh                      # minutes the first time (downloads), well under one afterwards
#   bash jobs/quickstart.sh --rounds 50 --alpha 0.1
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
bash jobs/environment.sh report # no numba: "auto" computes so small a model with NumPy
# shellcheck disable=SC1091
. .venv/bin/activate
export PYTHONUNBUFFERED=1

mkdir -p results
number=1
while [[ -e results/quickstart-$number.h5 ]]; do number=$((number + 1)); done
result=results/quickstart-$number.h5

command=(mpirun -n 11 python -m zofl_mpi.zo_hfl --out "$result" "$@")
printf 'quickstart: %s\n' "${command[*]}"
start=$SECONDS
"${command[@]}"
printf 'quickstart: the run took %d s\n' $((SECONDS - start))
printf 'quickstart: a page to open in a browser: '
python -m zofl_mpi.report "$result" --out "${result%.h5}.html"
printf 'quickstart: next: . .venv/bin/activate, then the commands of README.md\n'
if ! python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    printf 'quickstart: networks and split learning need torch; for the CPU: ZOFL_TORCH_INDEX=cpu bash jobs/environment.sh torch\n'
fi
