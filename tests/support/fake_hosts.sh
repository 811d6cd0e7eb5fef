#!/usr/bin/env bash
# Fake hosts on one machine: network namespaces on a bridge of their own, so that nothing leaves it.
# Needs root, and iproute2 and util-linux of the system.
#   PREFIX=fh N=2 fake_hosts.sh up [rate]      hosts fh0 and fh1, e.g. at 1gbit
#   PREFIX=fh N=2 fake_hosts.sh rate 1gbit|none [HOST]
#   PREFIX=fh fake_hosts.sh cut 1 | mend 1     interface of fh1 down | up
#   PREFIX=fh N=2 fake_hosts.sh down
#   fake_hosts.sh on fh1 COMMAND ...           runs COMMAND there; a launch agent, as ssh is one
set -euo pipefail
N=${N:-2} PREFIX=${PREFIX:-fh}
SWITCH="${PREFIX}sw"
inside() { ip netns exec "$@"; }

up() {
  ip netns add "$SWITCH"
  inside "$SWITCH" ip link add br0 type bridge
  inside "$SWITCH" ip link set br0 up
  inside "$SWITCH" ip link set lo up
  for ((i = 0; i < N; i++)); do
    local host="$PREFIX$i"
    ip netns add "$host"
    ip link add "${host}e" netns "$host" type veth peer name "${host}s" netns "$SWITCH"
    inside "$host" ip link set lo up
    inside "$host" ip link set "${host}e" name eth0
    inside "$host" ip addr add "10.77.0.$((i + 1))/24" dev eth0
    inside "$host" ip link set eth0 up
    inside "$SWITCH" ip link set "${host}s" master br0
    inside "$SWITCH" ip link set "${host}s" up
    mkdir -p "/etc/netns/$host"
    {
      echo "127.0.0.1 localhost"
      for ((j = 0; j < N; j++)); do echo "10.77.0.$((j + 1)) $PREFIX$j"; done
    } >"/etc/netns/$host/hosts"
  done
}
rate() { # rate gbit|none [host number]: at both ends of every link, or of one
  for ((i = 0; i < N; i++)); do
    [[ -n ${2:-} && $2 != "$i" ]] && continue
    local host="$PREFIX$i"
    inside "$host" tc qdisc del dev eth0 root 2>/dev/null || true
    inside "$SWITCH" tc qdisc del dev "${host}s" root 2>/dev/null || true
    [[ $1 == none ]] && continue
    inside "$host" tc qdisc add dev eth0 root tbf rate "$1" burst 256kb latency 50ms
    inside "$SWITCH" tc qdisc add dev "${host}s" root tbf rate "$1" burst 256kb latency 50ms
  done
}
down() {
  for ((i = 0; i < N; i++)); do
    ip netns del "$PREFIX$i" 2>/dev/null || true
    rm -rf "/etc/netns/$PREFIX$i"
  done
  ip netns del "$SWITCH" 2>/dev/null || true
}
on() {
  while [[ ${1:-} == -* ]]; do # ssh's options are passed over
    case $1 in -o | -p | -l | -i | -F) shift 2 ;; *) shift ;; esac
  done
  local host=$1
  shift
  # As ssh does: the words are joined by blanks and given to a shell. With a /dev/shm and an IPC
  # namespace of the host's own, nothing crosses hosts but the network.
  exec ip netns exec "$host" unshare --uts --ipc --mount \
    bash -c 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm; hostname "$0"; eval "$*"' "$host" "$@"
}
case ${1:-} in
  up) up; if [[ -n ${2:-} ]]; then rate "$2"; fi ;;
  rate) rate "$2" "${3:-}" ;;
  cut) inside "$PREFIX$2" ip link set eth0 down ;;
  mend) inside "$PREFIX$2" ip link set eth0 up ;;
  down) down ;;
  on) shift; on "$@" ;;
  "") sed -n '2,9p' "$0" ;;
  *) on "$@" ;;
esac
