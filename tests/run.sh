#!/usr/bin/env bash
# All checks: lint, format, types, the tests (two files at a time), then the MPI tests on 2, 3 and 5 ranks. Ends non-zero
# if any failed; every step has a time limit, so it never hangs.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
bash jobs/environment.sh test
# shellcheck disable=SC1091
. .venv/bin/activate
export PYTHONUNBUFFERED=1

summary=()
failed=0

check() { # check NAME SECONDS COMMAND...
    local name=$1 limit=$2 start=$SECONDS status=0 verdict
    shift 2
    printf '\n== %s: %s\n' "$name" "$*"
    timeout -k 10 "$limit" "$@" || status=$?
    case $status in
        0) verdict=passed ;;
        5) if [[ $* == *pytest* ]]; then verdict='no tests yet'; else verdict='failed (status 5)'; failed=1; fi ;;
        124 | 137) verdict="stopped after its limit of $limit s"; failed=1 ;;
        *) verdict="failed (status $status)"; failed=1 ;;
    esac
    summary+=("$(printf '%-16s %4d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

check lint 60 ruff check .
check format 60 ruff format --check .
check types 300 mypy
check tests 3600 python -m pytest -n 2 --dist loadfile tests
for ranks in 2 3 5; do
    if ! compgen -G 'tests/mpi/test_*.py' >/dev/null; then break; fi
    check "mpi, $ranks ranks" 300 mpirun -n "$ranks" python -m pytest -q --with-mpi --only-mpi tests/mpi
done

printf '\n== summary (%d s)\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
exit "$failed"
