#!/usr/bin/env bash
# All checks: lint, format, the tests (four files at a time, since much of tests/e2e waits), types, then the MPI tests on
# 2, 3 and 5 ranks. Ends non-zero if any failed; every step has a time limit, so it never hangs.
#
#   bash tests/run.sh            everything
#   bash tests/run.sh quick      while one develops: lint, format, types, unit and numerics without the slow ones, 3 ranks
#   bash tests/run.sh foreign    unit and numerics with the kernels of another processor: results differ in rounding, and
#                                what the tests claim must hold all the same
#
# Ended by TERM, HUP or Ctrl-C, it ends every process that it has started, those in sessions of their own too.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
what=${1:-all}
case $what in
    all | quick | foreign) ;;
    *) echo "tests/run.sh $what: choose all, quick or foreign" >&2; exit 2 ;;
esac

set -m # a command in the background keeps SIGINT, which tests send to what they start
export ZOFL_TEST_RUN=$$.$RANDOM # in the environment of all that is started here, by which it is found

started() { grep -slzxF "ZOFL_TEST_RUN=$ZOFL_TEST_RUN" /proc/[0-9]*/environ | cut -d / -f 3 || true; }

end_all() { # TERM first: mpirun then ends its ranks, on other hosts too
    local name pids k
    for name in TERM KILL; do
        for k in {1..30}; do
            mapfile -t pids < <(started)
            if ((${#pids[@]} == 0)); then return; fi
            if [[ $k == 1 || $name == KILL ]]; then kill -s "$name" "${pids[@]}" 2>/dev/null || true; fi
            sleep 0.1
        done
    done
}

interruptible() { # interruptible COMMAND...: bash runs a trap at once while it waits, but not during a command
    "$@" &
    wait $!
}

for number in 1 2 15; do
    # shellcheck disable=SC2064
    trap "trap '' HUP INT TERM; end_all; exit $((128 + number))" "$number"
done

interruptible bash jobs/environment.sh test
# shellcheck disable=SC1091
. .venv/bin/activate
export PYTHONUNBUFFERED=1

summary=()
failed=0

check() { # check NAME SECONDS COMMAND...
    local name=$1 limit=$2 start=$SECONDS status=0 verdict
    shift 2
    printf '\n== %s: %s\n' "$name" "$*"
    interruptible timeout -k 10 "$limit" "$@" || status=$?
    case $status in
        0) verdict=passed ;;
        5) if [[ $* == *pytest* ]]; then verdict='no tests yet'; else verdict='failed (status 5)'; failed=1; fi ;;
        124 | 137) verdict="stopped after its limit of $limit s"; failed=1; end_all ;;
        *) verdict="failed (status $status)"; failed=1 ;;
    esac
    summary+=("$(printf '%-16s %4d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

# Each rank loads the one plugin that it needs: all that are installed take longer than the tests.
mpi=(env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -m pytest -q -p pytest_mpi --with-mpi --only-mpi tests/mpi)
tests=(python -m pytest --dist loadfile --no-loadscope-reorder) # the short files last
case $what in
    all) further=("${tests[@]}" -n 4 tests) ranks=(2 3 5) ;;
    quick) further=("${tests[@]}" -n 2 -m 'not slow' tests/unit tests/numerics) ranks=(3) ;;
    foreign)
        # OpenBLAS, torch, oneDNN and numba as on older processors; each takes other sums in another order.
        export OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 NUMBA_CPU_NAME=generic
        further=("${tests[@]}" -n 2 tests/unit tests/numerics) ranks=()
        ;;
esac

if [[ $what != foreign ]]; then
    check lint 300 ruff check .
    check format 300 ruff format --check .
    mypy >/dev/null 2>&1 & # beside the tests: a first run takes a minute of one core, the next one seconds
fi
check tests 3600 "${further[@]}"
if [[ $what != foreign ]]; then check types 900 mypy; fi
for n in "${ranks[@]}"; do
    check "mpi, $n ranks" 900 mpirun -n "$n" "${mpi[@]}"
done

printf '\n== summary (%d s)\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
exit "$failed"
