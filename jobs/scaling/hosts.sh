#!/usr/bin/env bash
# Three hosts on one machine: runs a command as the first of three network namespaces, each with its own host name and a
# link of a given rate to the others, and removes them afterwards. An mpirun of Open MPI in it spreads its ranks evenly.
#
#   bash jobs/scaling/hosts.sh 100mbit mpirun -n 7 python -m zofl_mpi.doctor        # as root; needs iproute2
#
# The hosts share the machine's cores, and bandwidth is limited, latency is not.
set -euo pipefail

if [[ ${1:-} == --on ]]; then # --on HOST COMMAND...: what mpirun calls in place of ssh
    shift
    while [[ $1 == -* ]]; do shift; done
    name=zofl${1##*.}
    shift
    exec ip netns exec "$name" unshare --uts bash -c "hostname $name; $*"
fi

bridge=zoflbr net=10.77.0 hosts=(1 2 3)
remove() { # the hosts, and what still runs on them
    local k
    for k in "${hosts[@]}"; do
        ip netns pids "zofl$k" 2>/dev/null | xargs --no-run-if-empty kill -KILL 2>/dev/null || true
        ip netns del "zofl$k" 2>/dev/null || true
    done
    ip link del "$bridge" 2>/dev/null || true
}
if [[ ${1:-} == --remove ]]; then # after a command that was killed with this script
    remove
    exit
fi

if (($# < 2)); then
    echo "hosts: say RATE COMMAND...: hosts.sh 1gbit mpirun -n 7 ..." >&2
    exit 2
fi
if ((EUID != 0)) || ! command -v tc >/dev/null || ! command -v ip >/dev/null; then
    echo "hosts: network namespaces need root, ip and tc (Debian, Ubuntu: apt-get install iproute2)" >&2
    exit 2
fi
rate=$1
shift

exec 9>/run/zofl-hosts.lock # one at a time: the hosts' names are the machine's
flock 9
remove
trap remove EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
ip link add "$bridge" type bridge
ip addr add "$net.254/24" dev "$bridge"
ip link set "$bridge" up
for k in "${hosts[@]}"; do
    ip netns add "zofl$k"
    ip link add "zofl-v$k" type veth peer name eth0 netns "zofl$k"
    ip link set "zofl-v$k" master "$bridge" up
    ip -n "zofl$k" addr add "$net.$k/24" dev eth0
    ip -n "zofl$k" link set eth0 up
    ip -n "zofl$k" link set lo up
    tc qdisc add dev "zofl-v$k" root tbf rate "$rate" burst 64k latency 50ms
    ip netns exec "zofl$k" tc qdisc add dev eth0 root tbf rate "$rate" burst 64k latency 50ms
done

agent=$(mktemp)
trap 'remove; rm -f "$agent" "$agent.hosts"' EXIT
printf '#!/usr/bin/env bash\nexec bash %q --on "$@"\n' "$(realpath -- "${BASH_SOURCE[0]}")" >"$agent"
chmod +x "$agent"
printf "$net.%s slots=64\n" "${hosts[@]}" >"$agent.hosts"
# What mpirun would be told by flags: the hosts, how to reach them, by which network, and ranks by turns on each.
export PRTE_MCA_plm_ssh_agent=$agent PRTE_MCA_prte_if_include=eth0 PRTE_MCA_prte_default_hostfile=$agent.hosts
export PRTE_MCA_rmaps_default_mapping_policy=node:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm,tcp OMPI_MCA_btl_tcp_if_include=eth0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
command=$(printf ' %q' "$@")
ip netns exec zofl1 unshare --uts bash -c "hostname zofl1; exec $command" 9>&- &
wait "$!" # a signal ends it at once
