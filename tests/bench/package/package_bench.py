#!/usr/bin/env python3
"""A wheel on N hosts: ds-install beside DeepSpeed's install.sh, or its steps with pdsh and pdcp.

A cluster (scripts/cluster) is started, each host with an environment of its own in /opt/env. In
interleaved rounds, with the same wheel:

  install.sh   on all hosts: make a folder, uninstall, copy the wheel, install, ds_report, clean up;
               what the script does after its build, step by step, each with pdsh or pdcp
  ds-install   --package WHEEL: the same, with everything that it checks before and after
  again        ds-install where the wheel is installed already

--deepspeed-cache FOLDER takes DeepSpeed's wheel and its torch from the folder that
scripts/dev/deepspeed-environment prints; else a small package is built. Times are medians
with the range. All hosts share this machine's processors: what counts is one beside the other.

--install-sh FILE runs that script itself, in DeepSpeed's source tree (its repository has the file,
its sdist has not). Both have built before, with the same build variables, and both reuse it:
install.sh with -n finds its tree's build/, ds-install its cache. What install.sh needs until it
turns to the hosts' packages is a row of its own. On each host `pip` and `ds_report` of a shell that
is no login are made to be those of the environment.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAME = f"bench{os.getpid()}"
sys.path.insert(0, str(ROOT / "tests/package"))
import greet  # noqa: E402

ENVIRONMENT = "/opt/env"


def cluster(*arguments, check=True):
    done = subprocess.run([ROOT / "scripts/cluster", "--name", NAME, *map(str, arguments)],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def timed(function):
    begin = time.monotonic()
    function()
    return time.monotonic() - begin


def make_environment(node, large):
    python = f"{large}/bin/python" if large else "/usr/bin/python3"
    cluster("node", node, "sh", "-c",
            f"rm -rf {ENVIRONMENT} && cd / && {python} -m venv --without-pip "
            f"--system-site-packages {ENVIRONMENT} && cd {ENVIRONMENT}/bin && "
            "printf '#!/bin/sh\\nexec %s/python -m pip \"$@\"\\n' $PWD >pip && chmod +x pip && "
            "echo PATH=$PWD:$PATH >/root/.bashrc")
    if large:
        # The large one's packages, torch among them, and its pip.
        site = greet.site_of(large)
        cluster("node", node, "sh", "-c",
                f"echo {site} >$(echo {ENVIRONMENT}/lib/python3*/site-packages)/large.pth")


def install_sh(hosts, wheel, name, report):
    """-S: otherwise pdsh tells nothing of what has failed, and this would be the time of nothing."""
    folder = "/tmp/deepspeed_wheels"
    pip = f"{ENVIRONMENT}/bin/python -m pip --disable-pip-version-check"
    steps = [("pdsh", f"mkdir -p {folder}"), ("pdsh", f"{pip} uninstall -y {name}"),
             ("pdcp", None),
             ("pdsh", f"{pip} install --no-deps --no-index {folder}/{wheel.name}"),
             ("pdsh", report), ("pdsh", f"rm -rf {folder}")]
    for program, command in steps:
        words = [program, "-w", hosts]
        words += ["-S", command] if program == "pdsh" else [str(wheel), folder]
        cluster("exec", *words)


class InstallSh:
    """The real script, in a tree that is built."""

    def __init__(self, script, cache, folder):
        self.hosts_begin = []
        self.words = dict(line.split("=", 1) for line in (cache / "variables").read_text().split())
        run(["tar", "-C", folder, "-xf", next((cache / "sdist").glob("deepspeed-*.tar.gz"))])
        self.tree = next(folder.glob("deepspeed-*"))
        shutil.copy(script, self.tree / "install.sh")
        run(["python", "setup.py", "bdist_wheel"], cwd=self.tree,
            env=dict(os.environ, **self.words))

    def __call__(self, hostfile):
        begin, output = time.monotonic(), []
        script = subprocess.Popen(
            [ROOT / "scripts/cluster", "--name", NAME, "exec", "env", "-C", self.tree,
             *(f"{name}={value}" for name, value in self.words.items()),
             "bash", "install.sh", "-r", "-n", "-H", hostfile],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in script.stdout:
            output.append(line)
            if line == "Installing deepspeed\n":
                self.hosts_begin.append(time.monotonic() - begin)
        # Its exit code tells nothing of the hosts.
        if script.wait() != 0:
            raise SystemExit("install.sh failed:\n" + "".join(output))


def run(words, **keywords):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **keywords)
    if done.returncode != 0:
        raise SystemExit(f"{words}: exit code {done.returncode}\n{done.stdout[-4000:]}")


def check_installed(hosts, name, version):
    """Whoever has done it: otherwise this is the time of nothing."""
    for node in range(1, hosts + 1):
        said = cluster("node", node, "sh", "-c", f"cd / && {ENVIRONMENT}/bin/python -B -c 'import "
                       f"importlib.metadata as m; print(m.version(\"{name}\"))'").strip()
        assert said == version, f"host {node} has {name} {said} and not {version}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", help="of each link, as 1gbit")
    parser.add_argument("--deepspeed-cache", type=pathlib.Path)
    parser.add_argument("--install-sh", type=pathlib.Path, metavar="FILE",
                        help="with --deepspeed-cache: DeepSpeed's own, from its repository")
    parser.add_argument("--program", default=ROOT / "build/release/ds-install")
    arguments = parser.parse_args()
    if arguments.install_sh and not arguments.deepspeed_cache:
        parser.error("--install-sh needs --deepspeed-cache")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dsi-bench"))
    if arguments.deepspeed_cache:
        large = arguments.deepspeed_cache / "env"
        wheel = next((arguments.deepspeed_cache / "release/wheels").glob("deepspeed-*.whl"))
        name, report = "deepspeed", f"{ENVIRONMENT}/bin/ds_report"
    else:
        large, name = None, "greet"
        wheel = greet.build_wheel(folder, "1.0")
        report = f"{ENVIRONMENT}/bin/python -c 'import greet.ops.adder_op'"
    cluster("up", arguments.hosts, *(["--rate", arguments.rate] if arguments.rate else []))
    try:
        hostfile = folder / "hostfile"
        hostfile.write_text(cluster("hostfile"))
        hosts = ",".join(line.split()[0] for line in hostfile.read_text().splitlines())
        config = folder / "site.yaml"
        here = f"python: {large}/bin/python\n" if large else ""
        config.write_text(here + "hosts:\n" + "".join(
            f"  {host}: {{ python: {ENVIRONMENT} }}\n" for host in hosts.split(",")))
        os.environ["PDSH_RCMD_TYPE"] = "ssh"
        os.environ["PDSH_SSH_ARGS_APPEND"] = "-q"
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        script = None
        if large:
            os.environ["PATH"] = f"{large}/bin:" + os.environ["PATH"]
        source = wheel
        if arguments.install_sh:
            os.environ["XDG_CACHE_HOME"] = str(arguments.deepspeed_cache / "cache")
            script = InstallSh(arguments.install_sh, arguments.deepspeed_cache, folder)
            source = next((arguments.deepspeed_cache / "sdist").glob("deepspeed-*.tar.gz"))
            os.environ.update(script.words)
        ours = [arguments.program, "-r", "-H", hostfile, "--config", config, "--json"]
        kind = "--deepspeed" if large else "--package"

        def ds_install(*words):
            last = json.loads(cluster("exec", *ours, *words).splitlines()[-1])
            assert last["exit_code"] == 0, last

        rows = {"install.sh": [], "ds-install": [], "ds-install again": []}
        for _ in range(arguments.rounds):
            for row in ("install.sh", "ds-install"):
                for node in range(1, arguments.hosts + 1):
                    make_environment(node, large)
                # An environment is older than its package; a file of this second is nothing to
                # build on (docs/adr/0004).
                time.sleep(2)
                if row != "install.sh":
                    rows[row].append(timed(lambda: ds_install(kind, source)))
                    rows["ds-install again"].append(timed(lambda: ds_install(kind, source)))
                elif script:
                    rows[row].append(timed(lambda: script(hostfile)))
                else:
                    rows[row].append(timed(lambda: install_sh(hosts, wheel, name, report)))
                check_installed(arguments.hosts, name, wheel.name.split("-")[1])
        if script:
            rows["  before any host"] = script.hosts_begin
        size = wheel.stat().st_size
        print(f"{wheel.name}, {size / 1e6:.1f} MB, {arguments.hosts} hosts, "
              f"{len(os.sched_getaffinity(0))} processors, {arguments.rounds} rounds")
        for row, seconds in rows.items():
            print(f"  {row:18} {statistics.median(seconds):7.1f} s   "
                  f"({min(seconds):.1f} to {max(seconds):.1f})")
    finally:
        cluster("down", check=False)


if __name__ == "__main__":
    main()
