# What the job scripts share; they source it at the root of the checkout.
# shellcheck shell=bash
set -euo pipefail

# With ZOFL_PACK=1 and the file of jobs/pack.sh, every node reads one large file and unpacks it on its own disk; else each
# rank reads thousands of small files from the shared file system, all ranks at once. The copy lies in a folder of its
# own in ZOFL_PACK_DIR, by default the job's temporary folder, and is removed at the end.
packed=''

# With ZOFL_MPS=1 ranks that share a GPU compute on it at once, by NVIDIA's MPS: a daemon on each node while the job lasts.
mps=''

# Others may write into a node's temporary folder: what is ours there has a name that nobody can know before, is made by
# us or not at all, and is closed to others. private FOLDER MORE...: makes it on a node, then runs MORE.
# shellcheck disable=SC2016
private='
    folder=$1 parent=$(dirname -- "$1")
    shift
    umask 077
    mkdir -p -- "$parent" || exit 1
    safe=(\( -user 0 -o -user "$(id -u)" \) \( -perm -1000 -o ! -perm /022 \))
    if [[ -z $(find -H "$parent/" -maxdepth 0 "${safe[@]}") ]]; then
        echo "$parent on $(uname -n) belongs to another, or others may rename what is in it: name another folder" >&2
        exit 1
    fi
    mkdir -m 700 -- "$folder" || exit 1
    if [[ -L $folder || ! -O $folder || $(stat -c %a -- "$folder") != *700 ]]; then
        echo "$folder on $(uname -n) is not ours alone" >&2
        exit 1
    fi
    if (($#)); then exec "$@"; fi
'
unknown() { mktemp --dry-run XXXXXXXXXXXX; } # a name that nobody can guess
once=(--nodes="${SLURM_NNODES:-1}" --ntasks="${SLURM_NNODES:-1}" --ntasks-per-node=1 --cpus-per-task=1 --mpi=none --overlap)

environment() { # environment NAME: makes .venv, or this job's copy of it on every node, the current one
    local name=$1 found
    if [[ ! -e .venv/bin/activate ]]; then
        printf '%s: there is no .venv in %s: make it once, on a login node: ZOFL_MPI=system bash jobs/environment.sh fast\n' "$name" "$PWD" >&2
        exit 2
    fi
    # shellcheck disable=SC1091
    . .venv/bin/activate
    if [[ ${ZOFL_MPS:-0} == 1 ]]; then share_gpus; fi
    if [[ ${ZOFL_PACK:-0} != 1 ]]; then return; fi
    if [[ -e .venv.tar ]]; then
        found=$(find zofl_mpi/ -name '*.py' -newer .venv.tar -print -quit)
        if [[ .venv/install.log -nt .venv.tar ]]; then found=.venv; fi
        found=${found:+"$found is newer than .venv.tar"}
    else
        found='there is no .venv.tar'
    fi
    if [[ -n $found ]]; then
        printf '%s: ZOFL_PACK=1, but %s: run bash jobs/pack.sh on a login node, and submit again\n' "$name" "$found" >&2
        exit 2
    fi
    packed=${ZOFL_PACK_DIR:-${SLURM_TMPDIR:-${TMPDIR:-/tmp}}}/zofl-${SLURM_JOB_ID:-0}-$(unknown)
    local start=$SECONDS archive=$packed/environment.tar
    each_node bash -c "$private" private "$packed" || { packed='' && exit 2; }
    if command -v sbcast >/dev/null; then
        sbcast --force .venv.tar "$archive"
    else
        archive=$PWD/.venv.tar # one large read a node: no tree of copies, but no small files either
    fi
    # shellcheck disable=SC2016
    each_node bash -c 'tar -xf "$1" -C "$2" && rm -f "$2/environment.tar"' unpack "$archive" "$packed"
    export VIRTUAL_ENV=$packed/.venv PATH=$packed/.venv/bin:$PATH
    export PYTHONSAFEPATH=1 PYTHONPATH=$packed:$PWD${PYTHONPATH:+:$PYTHONPATH} # else python -m looks in $PWD first
    hash -r
    printf '%s: the environment is unpacked in %s on each node (%d s)\n' "$name" "$packed" $((SECONDS - start))
}

# A rank that starts before its node's daemon answers computes without it, and takes turns with those that came later.
# shellcheck disable=SC2016
answers='
    for _ in {1..300}; do
        if echo get_default_active_thread_percentage | nvidia-cuda-mps-control >/dev/null 2>&1; then exit; fi
        sleep 0.1
    done
    echo "ZOFL_MPS=1: the daemon on $(uname -n) does not answer within 30 s: see $CUDA_MPS_LOG_DIRECTORY, or leave ZOFL_MPS out" >&2
    exit 1
'

share_gpus() { # starts MPS on every node of the job, and waits until it answers
    export CUDA_MPS_PIPE_DIRECTORY=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/zofl-mps-${SLURM_JOB_ID:-0}-$(unknown)
    export CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
    # In the foreground of a step that lasts: Slurm ends what a step leaves behind, a daemon too.
    srun "${once[@]}" bash -c "$private" private "$CUDA_MPS_PIPE_DIRECTORY" nvidia-cuda-mps-control -f &
    mps=$!
    each_node bash -c "$answers" answers || { leave && exit 1; }
}

each_node() { # each_node COMMAND...: once on every node of the job, for at most ten minutes
    timeout "${patience:-600}" srun "${once[@]}" "$@"
}

leave() { # removes this job's copies, and ends MPS
    if [[ -n $mps ]]; then kill "$mps" 2>/dev/null || true; fi
    if [[ -n $packed ]]; then patience=20 each_node rm -rf "$packed" || true; fi
}

# The commands that continue this job's run, and that begin it again: the run's own sentences name them, too.
submit() { # submit SCRIPT ARGUMENTS...: what starts a job like this one, as one types it
    local words=(sbatch)
    if [[ -n ${ZOFL_COMMAND:-} ]]; then words=("ZOFL_COMMAND=$ZOFL_COMMAND" sbatch); fi
    if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then words+=("--array=$SLURM_ARRAY_TASK_ID"); fi
    if [[ -n ${SLURM_NTASKS:-} ]]; then words+=("--ntasks=$SLURM_NTASKS"); fi
    printf -v words ' %q' "${words[@]}" "$@"
    printf '%s' "${words# }"
}

ended() { # ended NAME STATUS CHECKPOINT: after a run that did not end well, the one line that goes on from there
    local name=$1 status=$2 checkpoint=$3 first=', after what the log tells is mended'
    if [[ -n ${cancelled:-} ]]; then first=''; fi
    for _ in {1..10}; do # a cancelled mpirun leaves before its ranks, which may be writing a checkpoint
        if [[ ! -e ${checkpoint%.ckpt.h5}.lock ]]; then break; fi
        sleep 0.5
    done
    if [[ -e $checkpoint ]]; then
        printf '%s: ended with status %d; continue on a login node: %s\n' "$name" "$status" "$ZOFL_RESUME"
    else
        printf '%s: ended with status %d; on a login node%s: %s\n' "$name" "$status" "$first" "$ZOFL_BEGIN"
    fi
}

# A run that is ended while it starts has no checkpoint to go on from; what ended it may end it each time.
ATTEMPTS=3

requeue() { # requeue NAME JOB CHECKPOINT [EARLY]: back into the queue; where that is impossible, what to do instead
    local name=$1 job=$2 checkpoint=$3 early=${4:-} otherwise=$ZOFL_BEGIN
    if [[ -e $checkpoint ]]; then otherwise=$ZOFL_RESUME; fi
    if [[ -n $early ]] && ((${SLURM_RESTART_COUNT:-0} >= ATTEMPTS)); then
        printf '%s: told to stop while it started, %d times: give it more time (--time, --signal). Then, on a login node: %s\n' \
            "$name" $((SLURM_RESTART_COUNT + 1)) "$otherwise"
        return
    fi
    if ! command -v scontrol >/dev/null; then
        printf '%s: told to stop, %s; there is no scontrol on %s to put this job back into the queue. On a login node: %s\n' \
            "$name" "${early:-after a checkpoint}" "$(uname -n)" "$otherwise"
        return
    fi
    # A job that is told to stop (--signal, pre-emption) is RUNNING; one that Slurm ends is COMPLETING: scancel is obeyed.
    # scontrol tells it as squeue does, which a compute node may lack.
    if [[ $(scontrol --oneliner show job "$job") == *JobState=RUNNING* ]]; then
        echo "$name: told to stop, ${early:-after a checkpoint}; back into the queue, where Slurm holds it for about two minutes"
        scontrol requeue "$job"
    else
        ended "$name" 75 "$checkpoint"
    fi
}
