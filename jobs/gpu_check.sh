#!/usr/bin/env bash
# Does a GPU compute right, and how fast? Sections in the order of worth, each with a limit in seconds; a section's lines
# are in OUT/SECTION.txt as they come, its verdict in OUT/summary.txt, so that a job that is ended loses the last ones only:
#
#   bash jobs/gpu_check.sh right               # 590 s at most: is it right? with an exchange of ranks, and a resumed run
#   bash jobs/gpu_check.sh speed               # 420 s at most: how fast, in how much memory?
#   bash jobs/gpu_check.sh resnet ranks        # these sections
#   DEVICE=cpu bash jobs/gpu_check.sh          # all sections without a GPU, in tiny shapes, where nothing is judged
#
#   OUT=results/gpu_check    where its files go
#   ZOFL_WHEELS=.whl         a folder of wheels that are installed for this check, where there is no .venv
#
# Exit status 1 where a section is wrong or late, or lacks a package: beside the package's own it needs transformers and
# peft (the extra lm) for gpt2, pytest (the extra test) for the self-checks, scikit-learn for the runs' digits.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

RIGHT=(resnet=60 gpt2=70 ranks=70 resume=80 cli=90 selfcheck-split=80 selfcheck-gpu=30 selfcheck-networks=80 cnn=30)
SPEED=(speed-resnet=160 speed-gpt2=100 speed-zo_hfl=70 speed-fedavg=50 speed-fedrzo=40)
device=${DEVICE:-cuda} out=${OUT:-results/gpu_check} wheels=${ZOFL_WHEELS:-.whl}
tiny=()
if [[ $device == cpu ]]; then tiny=(--tiny); fi

run() { # run NAME FLAGS...: a short HERON run on the device, into OUT/NAME.h5, on RANKS ranks where that is set
    local launcher=()
    if [[ -n ${RANKS:-} ]]; then launcher=(mpirun --oversubscribe -n "$RANKS"); fi
    "${launcher[@]}" "$PYTHON" -m zofl_mpi.heron_sfl --device "$device" --data digits --problem split_cnn --m 4 --h 4 \
        --batch 32 --seed 1 --eval-every 2 --force --quiet --out "$out/$1.h5" "${@:2}"
}

ranks() { # the server and two client ranks, which share the card, have the bits of one process
    rm -f "$out"/{ranks,alone}{,.ckpt}.h5*
    run alone --rounds 4 && RANKS=3 run ranks --rounds 4 && same ranks alone
}

resume() { # a run that is continued on the device has the bits of one that never stopped
    rm -f "$out"/{whole,part}{,.ckpt}.h5*
    run whole --rounds 4 && run part --rounds 2 &&
        "$PYTHON" -m zofl_mpi.heron_sfl --resume "$out/part.h5" --rounds 4 --quiet && same part whole
}

cli() { # the three commands, as one types them
    "$PYTHON" -m zofl_mpi.doctor || return
    "$PYTHON" -m zofl_mpi.zo_hfl --problem cnn --data digits --device "$device" --rounds 2 --tau 5 --force --quiet --out "$out/zo_hfl.h5" &&
        "$PYTHON" -m zofl_mpi.fedrzo --problem cnn --data digits --device "$device" --rounds 2 --force --quiet --out "$out/fedrzo.h5" &&
        run rough --rounds 1 --tf32 --bf16
}

same() { "$PYTHON" analysis/timing.py "$out/$1.h5" --same-as "$out/$2.h5"; }

section() { # section NAME LIMIT: its own process, its own limit
    case $1 in
    ranks | resume | cli) "$1" ;;
    *) "$PYTHON" -m tests.bench.gpu "$1" --device "$device" --seconds "$(($2 * 7 / 10))" "${tiny[@]}" ;;
    esac
}

if [[ ${1:-} == --section ]]; then # this script once more, under `timeout`
    section "$2" "$3"
    exit
fi

if [[ -e .venv/bin/activate ]]; then
    # shellcheck disable=SC1091
    . .venv/bin/activate
elif [[ -d $wheels ]]; then # beside what python3 has
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl || exit 2
    export PYTHONPATH=$PWD:$site PATH=$site/bin:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 # in a container
fi
PYTHON=$(command -v python || command -v python3) || exit 2
export PYTHON

if (($# == 0)); then set -- right speed; fi
chosen=()
for word in "$@"; do
    found=()
    for each in "${RIGHT[@]}"; do if [[ $word == right || $word == "${each%=*}" ]]; then found+=("$each"); fi; done
    for each in "${SPEED[@]}"; do if [[ $word == speed || $word == "${each%=*}" ]]; then found+=("$each"); fi; done
    if ((${#found[@]} == 0)); then
        all=("${RIGHT[@]%=*}" "${SPEED[@]%=*}")
        echo "gpu_check: there is no section $word; take right, speed, or some of ${all[*]}" >&2
        exit 2
    fi
    chosen+=("${found[@]}")
done

mkdir -p "$out"
bad=0
for each in "${chosen[@]}"; do
    name=${each%=*} limit=${each#*=} start=$SECONDS verdict=right status=0
    timeout --kill-after=5 "$limit" bash "$0" --section "$name" "$limit" >"$out/$name.txt" 2>&1 || status=$?
    if ((status == 124 || status == 137)); then verdict=LATE; elif ((status)); then verdict=WRONG; fi
    if ((status)); then bad=1; fi
    printf '%-18s %-5s %3d s of %d  %s\n' "$name" "$verdict" $((SECONDS - start)) "$limit" "$out/$name.txt" | tee -a "$out/summary.txt"
    if ((status)); then grep -E '^(WRONG|FAILED)' "$out/$name.txt" || tail -n 3 "$out/$name.txt"; fi
done
exit "$bad"
