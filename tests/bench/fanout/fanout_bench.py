#!/usr/bin/env python3
"""How close ds-install comes to the time of one copy, and what else is tried on the same hosts.

  fan-out        ds-install, pdcp, clush --copy flat and tree, sbcast, and scp to one host, in interleaved rounds
  slow           one host of all has a tenth of the rate: when are the others done?
  killed         three hosts die at a third of the way: when are the others done?
  first-contact  no host has the agent: what leaves the head for each host?
  delta          one op is rebuilt with a change of one line, against zstd --patch-from
  noop           everything is installed already, against `pdsh -f 64 true`
  fast           1 Gbit/s and no limit at all: what the processors allow and where their time goes

Each needs a cluster of scripts/cluster, therefore root, and a quiet machine. T is the time of a run minus
the time of a run on the same hosts that finds everything there; F is the payload's bits over the rate of a
link. The payload is an op library that is one random blob, new in each round, on hosts that have the agent
and an earlier release. What is done once for a payload whatever the number of hosts (build, unpack,
compress) is done before, on a host that is not in the hostfile; --cold leaves the last two in.
Bytes are counted at the head's card. TCP, IP and Ethernet headers are 4.4 % on top of what a card of
these hosts counts, and within what a link's rate allows: T/F cannot be below 1.045.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys
import time

from hosts import ROOT, Hosts, bits, host_name
from payload import Workshop

sys.path.insert(0, str(ROOT / "tests/bench"))
from program import add_program_option  # noqa: E402

MIB = 2**20


def median(values):
    return statistics.median(values)


def spread(values, digits=2):
    """The median, with the range if there is one."""
    text = f"{median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"


class Table:
    """Rows that are printed as Markdown, at once, and kept for the JSON file."""

    def __init__(self, results, title, *columns):
        self.rows = []
        results[title] = self.rows
        self.columns = columns
        print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)

    def add(self, *cells, **figures):
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        self.rows.append(dict(zip(self.columns, map(str, cells)), **figures))


def parse_setup(text):
    hosts, rate, mib = text.split(":")
    return int(hosts), rate, float(mib)


def prepared(hosts, workshop):
    """Every host has the agent and a small release."""
    base = workshop.blob("base", 16)
    hosts.forget()
    hosts.install(base)
    if hosts.spare:
        hosts.install(base, hostfile=hosts.sparefile)
    return base


def workshop_of(hosts):
    return Workshop(hosts.folder, hosts.options.program, hosts.environment)


# --- fan-out --------------------------------------------------------------------------------------


def fan_out(options, results):
    for count, rate, mib in options.setups:
        with Hosts(count, rate, options, spare=1) as hosts:
            fan_out_on(hosts, mib, results)


def fan_out_on(hosts, mib, results):
    options, workshop = hosts.options, workshop_of(hosts)
    prepared(hosts, workshop)
    others = {"pdcp": hosts.pdcp, "clush": hosts.clush, "clush-tree": hosts.clush_tree, "scp": hosts.scp,
              "sbcast": hosts.sbcast}
    seconds, copies, control = {}, {}, []
    for turn in range(options.rounds):
        payload = workshop.blob(f"blob{turn}", int(mib * MIB))
        hosts.warm(payload)
        install = hosts.install(payload)
        noop = hosts.install(payload)
        seconds.setdefault("ds-install", []).append(install.seconds - noop.seconds)
        seconds.setdefault("ds-install, whole run", []).append(install.seconds)
        copies.setdefault("ds-install", []).append(install.sent / payload.size)
        # What is not the payload: of a run that sends one copy, all that is more than it.
        control.append((noop.sent / hosts.count, (install.sent - payload.size) / hosts.count))
        for name in options.tools:
            if turn > 0 and name != "scp" and options.tools_once:
                continue
            try:
                run = others[name](payload.library)
            except RuntimeError as error:
                print(f"{name} failed: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            seconds.setdefault(name, []).append(run.seconds)
            copies.setdefault(name, []).append(run.sent / payload.size)
    floor = payload.size * 8 / bits(hosts.rate)
    table = Table(results, f"{hosts.count} hosts at {hosts.rate}, {mib:g} MiB: F = {floor:.2f} s",
                  "tool", "seconds", "over F", "copies sent by the head")
    for name, values in seconds.items():
        sent = spread(copies[name]) if name in copies else ""
        table.add(name, spread(values), f"{median(values) / floor:.2f}", sent,
                  all_seconds=values, floor=floor, all_copies=copies.get(name))
    print(f"\nThe head sends {median([c[0] for c in control]) / 1024:.1f} KiB a host in a run that finds everything "
          f"there; beyond one copy, an install sends {median([c[1] for c in control]) / 1024:.1f} KiB a host.")


# --- what goes wrong ------------------------------------------------------------------------------


def others_are_done(install, noop, without):
    """T of the hosts that are not in `without`, measured where the report says when each was done."""
    return (install.finished(without) - noop.finished(without))


def slow(options, results):
    with Hosts(options.hosts, options.rate, options, spare=1) as hosts:
        workshop = workshop_of(hosts)
        prepared(hosts, workshop)
        laggard = host_name(hosts.count // 2)
        tenth = f"{int(bits(options.rate) / 10)}bit"
        table = Table(results, f"one of {hosts.count} hosts at a tenth of {options.rate}, {options.mib:g} MiB",
                      "round", "T of the others, s", "over F", "the slow one, s", "copies sent by the head")
        ratios = []
        for turn in range(options.rounds):
            payload = workshop.blob(f"blob{turn}", int(options.mib * MIB))
            hosts.warm(payload)
            hosts.control("rate", hosts.count // 2, tenth)
            install = hosts.install(payload)
            hosts.control("rate", hosts.count // 2, options.rate)
            noop = hosts.install(payload)
            t, floor = others_are_done(install, noop, [laggard]), payload.size * 8 / bits(options.rate)
            ratios.append(t / floor)
            table.add(turn + 1, f"{t:.2f}", f"{t / floor:.2f}", f"{install.hosts()[laggard]['seconds']:.2f}",
                      f"{install.sent / payload.size:.2f}")
        table.add("median", "", spread(ratios), "", "")


def killed(options, results):
    with Hosts(options.hosts, options.rate, options, spare=1) as hosts:
        workshop = workshop_of(hosts)
        prepared(hosts, workshop)
        victims = sorted({2, hosts.count // 2 + 1, hosts.count - 1})
        names = [host_name(k) for k in victims]
        table = Table(results, f"{len(victims)} of {hosts.count} hosts at {options.rate} die, {options.mib:g} MiB",
                      "how", "round", "T of the others, s", "over F", "reported", "exit code", "whole run, s")
        for how in options.how:
            ratios = []
            for turn in range(options.rounds):
                payload = workshop.blob(f"blob_{how}{turn}", int(options.mib * MIB))
                hosts.warm(payload)
                install = hosts.install(payload, codes=None,
                                        meanwhile=lambda run: kill_at_a_third(hosts, payload, victims, how, run))
                for k in victims:
                    hosts.control("plug" if how == "power" else "start-sshd", k)
                noop = hosts.install(payload)  # Which also repairs the victims, so it is not the measure:
                noop = hosts.install(payload)
                rows = install.hosts()
                told = [name for name in names if rows[name]["result"] in ("failed", "unreachable")]
                failed = [name for name, row in rows.items()
                          if name not in names and row["result"] != "installed"]
                t, floor = others_are_done(install, noop, names), payload.size * 8 / bits(options.rate)
                ratios.append(t / floor)
                table.add(how, turn + 1, f"{t:.2f}", f"{t / floor:.2f}",
                          f"{len(told)} of {len(names)}" + (f", AND {','.join(failed)}" if failed else ""),
                          install.code, f"{install.seconds:.2f}")
            table.add(how, "median", "", spread(ratios), "", "", "")


def kill_at_a_third(hosts, payload, victims, how, process):
    """Once each victim's card has received a third of the payload."""
    begin = {k: hosts.traffic(k)[2] for k in victims}
    waiting = set(victims)
    while waiting and process.poll() is None:
        for k in sorted(waiting):
            if hosts.traffic(k)[2] - begin[k] >= payload.size / 3:
                waiting.discard(k)
        time.sleep(0.02)
    if waiting:
        raise RuntimeError("the run ended before a third of the payload had arrived")

    def kill(k):
        for verb in ["unplug"] if how == "power" else ["kill-agent", "kill-sshd"]:
            hosts.control(verb, k)

    # Side by side: one after the other the last would be done before its turn.
    with concurrent.futures.ThreadPoolExecutor(len(victims)) as pool:
        list(pool.map(kill, victims))


# --- bytes ----------------------------------------------------------------------------------------


def first_contact(options, results):
    table = Table(results, "First contact: what leaves the head", "hosts", "KiB a host", "with all headers",
                  "KiB a host in a no-op run", "seconds")
    for count in options.counts:
        with Hosts(count, options.rate, options) as hosts:
            base = workshop_of(hosts).blob("base", 16)
            first, noop = [], []
            for _ in range(options.rounds):
                hosts.forget()
                first.append(hosts.install(base))
                noop.append(hosts.install(base))
            kib = [run.sent / count / 1024 for run in first]
            table.add(count, spread(kib, 1), spread([run.wire / count / 1024 for run in first], 1),
                      spread([run.sent / count / 1024 for run in noop], 1), spread([run.seconds for run in first]),
                      kib=kib)


def delta(options, results):
    with Hosts(options.hosts, options.rate, options) as hosts:
        workshop = workshop_of(hosts)
        old, new = (workshop.code("code", options.types, line)
                    for line in ("sum += seed;", "sum += static_cast<int>(std::to_string(seed).size());"))
        patch = hosts.folder / "patch"
        subprocess.run(["zstd", "-q", "-q", "-f", "-19", "--long=27", f"--patch-from={old.library}", new.library,
                        "-o", patch], check=True)
        whole = subprocess.run(["zstd", "-q", "-19", "-c", new.library], check=True, capture_output=True).stdout
        table = Table(results, f"A change of one line, {hosts.count} hosts", "library, KiB", "zstd -19, KiB",
                      "patch, KiB", "sent, KiB", "no-op, KiB a host", "beyond 1.2 patches, KiB a host", "seconds")
        for _ in range(options.rounds):
            hosts.forget()
            hosts.install(old)
            run = hosts.install(new)
            noop = hosts.install(new)
            beyond = (run.sent - 1.2 * patch.stat().st_size) / hosts.count / 1024
            table.add(f"{new.size / 1024:.0f}", f"{len(whole) / 1024:.1f}", f"{patch.stat().st_size / 1024:.1f}",
                      f"{run.sent / 1024:.1f}", f"{noop.sent / hosts.count / 1024:.1f}", f"{beyond:.1f}",
                      f"{run.seconds:.2f}", beyond=beyond)


# --- time -----------------------------------------------------------------------------------------


def noop(options, results):
    with Hosts(options.hosts, options.rate, options) as hosts:
        base = prepared(hosts, workshop_of(hosts))
        runs = {"ds-install": [], "pdsh -f 64 true": []}
        for _ in range(options.rounds):
            runs["ds-install"].append(hosts.install(base))
            runs["pdsh -f 64 true"].append(hosts.run("pdsh", "-f", "64", "-w", hosts.names, "true"))
        table = Table(results, f"Nothing to do, {hosts.count} hosts at {options.rate}", "tool", "seconds",
                      "head's processor seconds", "KiB sent a host", "over pdsh")
        pdsh = median([run.seconds for run in runs["pdsh -f 64 true"]])
        for name, values in runs.items():
            times = [run.seconds for run in values]
            table.add(name, spread(times), spread([run.cpu for run in values]),
                      f"{median([run.sent for run in values]) / hosts.count / 1024:.1f}", f"{median(times) / pdsh:.2f}")


def fast(options, results):
    table = Table(results, f"Fast links, {options.hosts} hosts, {options.mib:g} MiB", "rate", "T, s", "MiB/s to each",
                  "MiB/s in all", "head's processor s", "hosts' processor s")
    profiles = []
    for rate in ("1gbit", ""):
        with Hosts(options.hosts, rate, options, spare=1) as hosts:
            workshop = workshop_of(hosts)
            prepared(hosts, workshop)
            times, head, nodes = [], [], []
            for turn in range(options.rounds):
                payload = workshop.blob(f"blob{turn}", int(options.mib * MIB))
                hosts.warm(payload)
                before = hosts.processor_seconds()
                install = hosts.install(payload)
                nodes.append(hosts.processor_seconds() - before)
                times.append(install.seconds - hosts.install(payload).seconds)
                head.append(install.cpu)
            each = payload.size / MIB / median(times)
            table.add(rate or "no limit", spread(times), f"{each:.0f}", f"{each * hosts.count:.0f}", spread(head),
                      spread(nodes))
            profiles.append((rate or "no limit", profile(hosts, workshop)))
    for rate, text in profiles:
        print(f"\nProcessor time of all that ran, {rate}, per cent (perf):\n\n```\n{text}```", flush=True)
    results["profiles"] = dict(profiles)


def profile(hosts, workshop):
    """Where the machine's time goes in one more install: by program, then by function."""
    payload = workshop.blob("profiled", int(hosts.options.mib * MIB))
    hosts.warm(payload)
    data = hosts.folder / "perf.data"
    try:
        perf = subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-a", "-F", "499", "-o", data],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return "perf is not installed\n"
    time.sleep(0.5)  # perf says nothing when it has begun; early samples are the idle task's.
    hosts.install(payload)
    perf.terminate()
    perf.wait()
    text = ""
    for keys, rows in (("comm", 8), ("comm,dso,symbol", 25)):
        lines = subprocess.run(["perf", "report", "-i", data, "--stdio", "--no-children", "-s", keys],
                               capture_output=True, text=True).stdout.splitlines()
        text += "\n".join([line.rstrip() for line in lines if line.strip() and line[:1] != "#"][:rows]) + "\n\n"
    return text


# --- the command line -----------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    add_program_option(common)
    common.add_argument("--rounds", type=int, default=3)
    common.add_argument("--topology", default="", help="auto, swarm or star, for ds-install; empty: not said")
    common.add_argument("--argument", action="append", default=[], help="one more argument for ds-install")
    common.add_argument("--cold", action="store_true", help="measure unpacking and compressing, too")
    common.add_argument("--json", type=pathlib.Path, help="write all figures to this file")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(function, name, hosts=None, rate="", mib=None):
        sub = commands.add_parser(name, parents=[common])
        sub.set_defaults(function=function)
        sub.add_argument("--rate", default=rate, help=f"of each link (default {rate or 'no limit'})")
        if hosts:
            sub.add_argument("--hosts", type=int, default=hosts)
        if mib:
            sub.add_argument("--mib", type=float, default=mib)
        return sub

    sub = command(fan_out, "fan-out")
    sub.add_argument("--setups", nargs="+", type=parse_setup, metavar="HOSTS:RATE:MIB",
                     default=[(8, "100mbit", 32), (32, "50mbit", 16), (64, "25mbit", 16)])
    sub.add_argument("--tools", nargs="*", default=["pdcp", "clush", "clush-tree", "scp"],
                     choices=["pdcp", "clush", "clush-tree", "sbcast", "scp"], help="what is measured besides; sbcast needs slurm-wlm and munge")
    sub.add_argument("--tools-once", action="store_true", help="the slow ones of them in the first round only")
    command(slow, "slow", hosts=32, rate="50mbit", mib=16)
    sub = command(killed, "killed", hosts=32, rate="50mbit", mib=16)
    sub.add_argument("--how", nargs="+", default=["crash", "power"], choices=["crash", "power"],
                     help="kill -9 of the agent and of sshd, or no cable")
    command(first_contact, "first-contact", rate="100mbit").add_argument(
        "--counts", type=int, nargs="+", default=[8, 64])
    command(delta, "delta", hosts=8, rate="100mbit").add_argument("--types", type=int, default=30)
    command(noop, "noop", hosts=64, rate="100mbit")
    command(fast, "fast", hosts=8, mib=64)

    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("fanout_bench: the cluster needs root")
    # So that a cluster is taken down whatever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("fanout_bench: terminated"))
    results = {}
    print(f"`{shlex.join(sys.argv[1:])}` on {os.cpu_count()} processors, {time.strftime('%F')}")
    options.function(options, results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
