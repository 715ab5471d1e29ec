#!/usr/bin/env bash
# The whole scaling study on this machine: all cores, one core, and, as root with iproute2, three hosts made of network
# namespaces with links of 1 Gbit/s and of 100 Mbit/s. About ten minutes on two cores that have nothing else to do.
#
#   bash jobs/scaling/measure.sh
#
# A report each: results/scaling/SYSTEM.json. Words given go to ReFrame, -t zo_hfl say, for a part of the study.
set -euo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
if [[ ! -e .venv/bin/activate ]]; then
    echo "measure: there is no .venv in $PWD: make it: bash jobs/environment.sh scaling analysis" >&2
    exit 2
fi
# shellcheck disable=SC1091
. .venv/bin/activate
systems=(local one-core)
if ((EUID == 0)) && command -v tc >/dev/null; then
    systems+=(gigabit megabit)
else
    echo "measure: no hosts of network namespaces without root and tc (iproute2)" >&2
fi
mkdir -p results/scaling
study='' words="$*" # the part in progress
finish() { # a signal has come in the middle of it: nothing of it is left to run on
    if [[ -z $study ]]; then return; fi
    if kill "$study" 2>/dev/null; then wait "$study" || true; fi
    if [[ "$system $words" == *bit* ]]; then bash jobs/scaling/hosts.sh --remove; fi
}
trap finish EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
status=0
for system in "${systems[@]}"; do
    reframe -C jobs/scaling/settings.py -c jobs/scaling/study.py --prefix results/scaling --exec-policy serial \
        --system "$system" --report-file "results/scaling/$system.json" --run "$@" &
    study=$!
    wait "$study" || status=1
    study=''
done
exit "$status"
