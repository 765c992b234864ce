#!/usr/bin/env python3
"""ds-install beside pdsh and pdcp, on the same hosts in one run.

For each number of hosts a cluster (scripts/cluster) is started, each host and the head behind a link
of --rate. Then, in interleaved rounds:

  no-op      ds-install where everything is installed already     against  pdsh -f 64 true
  install    ds-install where nothing is (no agent either)        against  pdcp of the same files

  report     the self-test of every op on every host, nothing sent

The first install contains one such report; on a real cluster each host tests on its own cores, here all
of them share this machine's, so `first - report` is what is comparable with a copy. `floor` is the time
that one copy of the files needs on the head's link. Times are medians of the rounds, with the range;
run as root on a quiet machine.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/bench"))
from program import add_program_option  # noqa: E402
NAME = f"bench{os.getpid()}"


def cluster(*arguments, check=True, quiet=True):
    return subprocess.run(
        [ROOT / "scripts/cluster", "--name", NAME, *map(str, arguments)],
        check=check,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None,
        text=True,
    ).stdout


def timed(*command):
    begin = time.monotonic()
    out = cluster("exec", *command)
    return time.monotonic() - begin, out


def bits(rate):
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return float(rate[:-4]) * units[rate[-4:]]


def bench(hosts, rate, rounds, program):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dsi-bench"))
    cluster("up", hosts, *(["--rate", rate] if rate else []))
    try:
        hostfile = folder / "hostfile"
        hostfile.write_text(cluster("hostfile"))
        names = ",".join(line.split()[0] for line in hostfile.read_text().splitlines() if line[:1] not in ("", "#"))
        install = [program, "-r", "-H", hostfile, "--json"]
        os.environ["PDSH_RCMD_TYPE"] = "ssh"
        os.environ["PDSH_SSH_ARGS_APPEND"] = "-q"
        # The files that travel, as a folder for pdcp; and the build, which is not what is measured.
        bundle = folder / "ops.tar.zst"
        cluster("exec", program, "build", "-o", bundle)
        payload = folder / "payload"
        payload.mkdir()
        subprocess.run(["tar", "--zstd", "-xf", bundle, "-C", payload], check=True)
        size = sum(f.stat().st_size for f in payload.rglob("*") if f.is_file())
        rows = {"pdsh true": [], "ds-install no-op": [], "pdcp": [], "ds-install first": [], "ds-install report": []}
        sent = 0
        for _ in range(rounds):
            for node in range(1, hosts + 1):
                cluster("node", node, "rm", "-rf", "/opt/ds-ops", "/opt/payload")
            seconds, out = timed(*install)
            summary = json.loads(out.splitlines()[-1])
            assert summary["exit_code"] == 0, out
            sent = summary["head_bytes_sent"]
            rows["ds-install first"].append(seconds)
            seconds, out = timed(program, "report", "-H", hostfile, "--json")
            assert json.loads(out.splitlines()[-1])["exit_code"] == 0, out
            rows["ds-install report"].append(seconds)
            rows["pdcp"].append(timed("pdcp", "-f", "64", "-r", "-w", names, payload, "/opt/")[0])
            seconds, out = timed(*install)
            assert json.loads(out.splitlines()[-1])["exit_code"] == 0, out
            rows["ds-install no-op"].append(seconds)
            rows["pdsh true"].append(timed("pdsh", "-f", "64", "-w", names, "true")[0])
        print(f"\n{hosts} hosts, link {rate or 'unlimited'}, {size / 2**20:.2f} MiB of files, "
              f"ds-install sent {sent / hosts / 2**20:.2f} MiB a host"
              + (f", floor of one copy {size * 8 / bits(rate):.2f} s" if rate else ""))
        for name, times in rows.items():
            print(f"  {name:18} {statistics.median(times):7.2f} s   ({min(times):.2f} to {max(times):.2f})")
        median = {name: statistics.median(times) for name, times in rows.items()}
        print(f"  no-op / pdsh      {median['ds-install no-op'] / median['pdsh true']:8.2f}")
        print(f"  first / pdcp      {median['ds-install first'] / median['pdcp']:8.2f}")
        transfer = median["ds-install first"] - median["ds-install report"]
        print(f"  (first - report) / pdcp {transfer / median['pdcp']:2.2f}", flush=True)
    finally:
        cluster("down", check=False)
        subprocess.run(["rm", "-rf", folder], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--rate", default="100mbit", help="of each link, for tc; '' for none")
    parser.add_argument("--rounds", type=int, default=3)
    add_program_option(parser)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("deploy_bench: the cluster needs root")
    for hosts in options.hosts:
        bench(hosts, options.rate, options.rounds, options.program)


if __name__ == "__main__":
    main()
