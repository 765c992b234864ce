#!/usr/bin/env bash
# cluster_test.sh MODE: scripts/cluster, from the start of real hosts to the last trace of them.
# shellcheck disable=SC2016 # what other shells expand is in single quotes on purpose
set -euo pipefail

mode=$1
cluster=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/cluster
export DSI_CLUSTER_NAME=selftest-$mode-$$
folder=$(mktemp -d)
trap '"$cluster" down 2>/dev/null; rm -rf "$folder"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect() {
  [[ $2 == "$3" ]] || fail "$1: expected '$2', found '$3'"
}
on_head() { "$cluster" exec "$@"; }

# Skipped is only what this machine does not allow; anything else that keeps hosts from starting is
# a failure.
start() {
  local status=0
  "$cluster" up 4 --rate 40mbit --mode "$mode" || status=$?
  if ((status == 77)) && ! unshare --net --mount --pid --fork true 2>/dev/null; then exit 77; fi
  ((status == 0)) || fail "the cluster does not start: $status"
}

every_host_answers() {
  local k host status
  while read -r host _; do
    expect "ssh to $host" yes "$(on_head ssh -o BatchMode=yes "$host" echo yes)"
  done < <("$cluster" hostfile)
  expect "hosts in the hostfile" 4 "$("$cluster" hostfile | wc -l)"
  expect "jump" yes "$(on_head ssh -o BatchMode=yes -J node001 node002 echo yes)"
  status=$("$cluster" status)
  for k in 1 2 3 4; do
    grep -q "^$(printf 'node%03d' "$k") .* sshd running$" <<<"$status" ||
      fail "status does not know that host $k runs"
  done
}

the_head_passes_folder_environment_and_status_on() {
  local status=0
  expect "folder" "$PWD" "$(on_head pwd)"
  expect "environment" seen "$(MARK=seen on_head sh -c 'echo "$MARK"')"
  on_head sh -c 'exit 7' || status=$?
  expect "exit status" 7 "$status"
  [[ $(on_head sh -c 'echo "$HOME"') != "$HOME" ]] || fail "the head has the caller's home"
}

a_host_that_is_down_refuses_and_comes_back() {
  "$cluster" kill-sshd 2
  ! on_head ssh -o BatchMode=yes node002 true 2>"$folder/error" || fail "a dead host answers"
  grep -q "Connection refused" "$folder/error" || fail "not refused: $(cat "$folder/error")"
  "$cluster" start-sshd 2
  on_head ssh -o BatchMode=yes node002 true
}

a_changed_key_is_noticed() {
  "$cluster" rekey 3
  ! on_head ssh -o BatchMode=yes node003 true 2>"$folder/error" || fail "a changed key is accepted"
  grep -q "IDENTIFICATION HAS CHANGED" "$folder/error" || fail "$(cat "$folder/error")"
}

a_black_hole_accepts_and_says_nothing() {
  "$cluster" blackhole 4
  ! on_head ssh -o BatchMode=yes -o ConnectTimeout=1 node004 true 2>"$folder/error" ||
    fail "a black hole answers"
  grep -q "banner exchange" "$folder/error" || fail "$(cat "$folder/error")"
}

hosts_are_separate() {
  local k name
  for k in 1 2 3 4; do
    name=$(printf 'node%03d' "$k")
    expect "host name" "$name" "$(on_head ssh "$name" hostname)"
  done
  for name in /opt /root /home /usr/local /var /etc /tmp /dev/shm; do
    "$cluster" node 1 touch "$name/selftest"
    "$cluster" node 1 test -e "$name/selftest" || fail "$name/selftest is not where it was written"
    ! "$cluster" node 2 test -e "$name/selftest" || fail "host 2 sees host 1's $name/selftest"
    [[ ! -e $name/selftest ]] || fail "the machine sees host 1's $name/selftest"
  done
  expect "user without root" dsuser "$(on_head ssh dsuser@node001 id -un)"
  expect "processes" 1 "$("$cluster" node 1 sh -c 'echo $$' | grep -c '^[0-9]\{1,3\}$')"
}

# Nanoseconds between the first byte and the last of 8 MiB, which take 1.68 s at 40 Mbit/s.
readonly TIMED='head -c 65536 >/dev/null; s=$(date +%s%N); head -c 8388608 | wc -c >/dev/null
  echo $(($(date +%s%N) - s))'
within() {
  local seconds_e9=$2
  # Never faster than the link; slower, as much as a busy machine is.
  ((seconds_e9 > 1342177280 && seconds_e9 < 15000000000)) ||
    fail "$1: 8 MiB at 40 Mbit/s took $((seconds_e9 / 1000000)) ms, not about 1678 ms"
  echo "$1: 8 MiB in $((seconds_e9 / 1000000)) ms"
}
the_rate_is_kept() {
  within "head to host" "$(head -c 8454144 /dev/zero | on_head ssh node001 "$TIMED")"
  within "host to head" "$(on_head ssh node001 head -c 8454144 /dev/zero | sh -c "$TIMED")"
}

the_rate_of_one_host_can_be_changed() {
  "$cluster" rate 1 80mbit
  local slow fast
  slow=$(head -c 8454144 /dev/zero | on_head ssh node002 "$TIMED")
  fast=$(on_head ssh node001 head -c 8454144 /dev/zero | sh -c "$TIMED")
  within "another host" "$slow"
  # The head's own link still is the limit.
  within "a host that is faster than the head" "$fast"
  "$cluster" rate 1 20mbit
  slow=$(head -c 4259840 /dev/zero | on_head ssh node001 "${TIMED//8388608/4194304}")
  within "half the bytes at half the rate, to the host" "$slow"
  slow=$(on_head ssh node001 head -c 4259840 /dev/zero | sh -c "${TIMED//8388608/4194304}")
  within "half the bytes at half the rate, from the host" "$slow"
  "$cluster" rate head 20mbit
  slow=$(head -c 4259840 /dev/zero | on_head ssh node002 "${TIMED//8388608/4194304}")
  within "half the bytes at half the rate, of the head" "$slow"
  "$cluster" rate head 40mbit
  "$cluster" rate 1 none
  ! "$cluster" rate 1 fast 2>/dev/null || fail "a rate that is none is accepted"
  "$cluster" rate 1 40mbit
  within "the old rate again" "$(head -c 8454144 /dev/zero | on_head ssh node001 "$TIMED")"
}

sent() { "$cluster" traffic | awk -v unit="$1" '$1 == "sent" && $3 == unit { print $2 }'; }
traffic_is_counted() {
  local bytes wire
  bytes=$(sent bytes) wire=$(sent wire_bytes)
  head -c 4194304 /dev/zero | on_head ssh node002 'cat >/dev/null'
  bytes=$(($(sent bytes) - bytes)) wire=$(($(sent wire_bytes) - wire))
  ((bytes >= 4194304 && wire >= bytes && wire < 4194304 * 108 / 100)) ||
    fail "4194304 bytes were sent, $bytes were counted, $wire with all headers"
}

connects() { "$cluster" node "$1" timeout 1 bash -c "exec 3<>/dev/tcp/$2/22" 2>/dev/null; }
a_firewall_stops_other_hosts_and_not_the_head() {
  connects 2 node003 || fail "host 2 does not reach host 3"
  "$cluster" isolate 3 4
  ! connects 2 node003 || fail "host 2 reaches host 3 through the firewall"
  ! connects 3 node002 || fail "host 3 reaches host 2 through its own firewall"
  connects 3 127.0.0.1 || fail "host 3 does not reach itself"
  expect "the head and a firewall" yes "$(on_head ssh node003 echo yes)"
  "$cluster" open 3 4
  connects 3 node004 || fail "host 3 does not reach host 4 when both are open again"
}

what_a_host_runs_is_seen() {
  expect "processes and ports of a host" "" "$("$cluster" agents 2)"
  on_head ssh node002 'cp /bin/sleep /opt/agent && { setsid /opt/agent 1000 >/dev/null 2>&1 & }'
  grep -q '^process [0-9]* /opt/agent: /opt/agent 1000 $' <<<"$("$cluster" agents 2)" ||
    fail "a process is not seen: $("$cluster" agents 2)"
  "$cluster" kill-agent 2
  expect "processes after the kill" "" "$("$cluster" agents 2)"
  ! "$cluster" kill-agent 2 2>/dev/null || fail "what is dead was killed"
  "$cluster" blackhole 2
  grep -q '^port .*:22 ' <<<"$("$cluster" agents 2)" || fail "a port is not seen"
  "$cluster" kill-sshd 2
  "$cluster" start-sshd 2
  expect "processes and ports at the end" "" "$("$cluster" agents 2)"
}

few_descriptors_are_few() {
  "$cluster" few-fds 2 64
  expect "descriptors" 64 "$(on_head ssh node002 ulimit -n)"
  expect "hard limit" 64 "$(on_head ssh node002 ulimit -Hn)"
}

a_clock_is_off() {
  local here there
  "$cluster" clock 2 ahead 1d
  here=$(date +%s)
  there=$(on_head ssh node002 date +%s)
  ((there - here > 86000 && there - here < 87000)) || fail "the clock is off by $((there - here)) s"
}

faults_are_as_ordered() {
  "$cluster" node-shell 1 /bin/false
  ! on_head ssh node001 true || fail "the login shell is not the one ordered"
  "$cluster" node-shell 1 /bin/bash
  "$cluster" noisy 1
  grep -q noise <<<"$(on_head ssh node001 true 2>&1)" || fail "a noisy shell is silent"
  "$cluster" noexec-tmp 1
  ! "$cluster" node 1 sh -c 'cp /bin/true /tmp/ && /tmp/true' 2>/dev/null || fail "/tmp executes"
  "$cluster" node 1 sh -c 'mkdir -p /opt/ds-ops && echo old >/opt/ds-ops/release'
  "$cluster" fill 1
  expect "what was installed" old "$("$cluster" node 1 cat /opt/ds-ops/release)"
  ! "$cluster" node 1 sh -c 'echo new >/opt/ds-ops/more' 2>/dev/null || fail "the disk is not full"
  "$cluster" unplug 1
  ! on_head ssh -o ConnectTimeout=1 node001 true 2>/dev/null || fail "an unplugged host answers"
  "$cluster" plug 1
  on_head ssh node001 true 2>/dev/null
}

# The namespaces of every host, as the kernel numbers them; without the machine's own.
namespaces() {
  local file
  for file in "/run/dsi-cluster-$DSI_CLUSTER_NAME"/pid/*; do
    readlink "/proc/$(<"$file")"/ns/{net,mnt,uts}
  done | sort -u | comm -23 - <(readlink /proc/self/ns/{net,mnt,uts} | sort)
}
# After the rest, as it takes what the cluster leaves. $1: the namespaces that were.
nothing_is_left() {
  local left
  # find also fails for a process that ends meanwhile.
  left=$({ find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/*' -printf '%l\n' 2>/dev/null || true; } |
    sort -u | comm -12 - "$1")
  expect "namespaces left" "" "$left"
  expect "mounts left" "" "$(grep -F "dsi-cluster-$DSI_CLUSTER_NAME" /proc/mounts || true)"
  expect "network devices" "$devices" "$(echo /sys/class/net/*)"
  expect "files left" "" "$(compgen -G "/*/dsi-cluster*$DSI_CLUSTER_NAME" || true)"
  left=$(grep -lsF -e "dsi-cluster-$DSI_CLUSTER_NAME" -e "$DSI_CLUSTER_NAME" \
    /proc/[0-9]*/cmdline || true)
  expect "processes left" "" "$left"
}

devices=$(echo /sys/class/net/*)
start
: >"$folder/namespaces"
[[ $mode == loopback ]] || namespaces >"$folder/namespaces"
every_host_answers
the_head_passes_folder_environment_and_status_on
if [[ $mode == namespaces ]]; then
  expect "namespaces of 4 hosts, the head and the switch" 18 "$(wc -l <"$folder/namespaces")"
  hosts_are_separate
  the_rate_is_kept
  the_rate_of_one_host_can_be_changed
  traffic_is_counted
  a_firewall_stops_other_hosts_and_not_the_head
  what_a_host_runs_is_seen
  few_descriptors_are_few
  a_clock_is_off
  faults_are_as_ordered
fi
a_host_that_is_down_refuses_and_comes_back
a_changed_key_is_noticed
a_black_hole_accepts_and_says_nothing
# Without namespaces a command of the head is the caller's affair.
[[ $mode == loopback ]] || on_head sleep 1000 &
"$cluster" down
nothing_is_left "$folder/namespaces"

if [[ $mode == namespaces ]]; then
  # As after a crash: the one process that holds all, and then the state.
  start
  switch=$(<"/run/dsi-cluster-$DSI_CLUSTER_NAME/pid/switch")
  kill -9 "$switch"
  # The kernel ends all that is below it first, which takes a moment on a busy machine.
  timeout 30 tail --pid="$switch" -f /dev/null
  start
  namespaces >"$folder/namespaces"
  rm -rf "/run/dsi-cluster-$DSI_CLUSTER_NAME"
  "$cluster" down
  nothing_is_left "$folder/namespaces"
fi
echo "passed: $mode"
