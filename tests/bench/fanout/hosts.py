"""Hosts to measure on (scripts/cluster), and the tools that are measured there."""

import json
import os
import pathlib
import subprocess
import tempfile
import time

from slurm import Slurm

ROOT = pathlib.Path(__file__).resolve().parents[3]


def bits(rate):
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return float(rate[:-4]) * units[rate[-4:]]


def host_name(k):
    return f"node{k:03d}"


class Run:
    """One timed command: what it took, what the head's card sent meanwhile, what it said."""

    def __init__(self, seconds, code, out, err, sent, wire, cpu):
        self.seconds, self.code, self.out, self.err = seconds, code, out, err
        self.sent, self.wire, self.cpu = sent, wire, cpu
        self.rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def hosts(self):
        return {row["host"]: row for row in self.rows if row.get("type") == "host"}

    def finished(self, without=()):
        """Seconds until the last host was done, of those that are not in `without`."""
        return max(row["seconds"] for host, row in self.hosts().items() if host not in without)


class Hosts:
    """N hosts for as long as the `with` lasts. `spare` of them are up and not in the hostfile."""

    def __init__(self, count, rate, options, spare=0):
        self.count, self.spare, self.rate, self.options = count, spare, rate, options
        self.slurm = None
        self.cluster_name = f"fanout{os.getpid()}"

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="dsi-fanout")
        self.folder = pathlib.Path(self._temporary.name)
        self.environment = dict(
            os.environ, XDG_CACHE_HOME=str(self.folder / "cache"), XDG_STATE_HOME=str(self.folder / "state"),
            PDSH_RCMD_TYPE="ssh", PDSH_SSH_ARGS_APPEND="-q")
        try:
            self.control("up", self.count + self.spare, *(["--rate", self.rate] if self.rate else []))
            names = [host_name(k) for k in range(1, self.count + 1)]
            self.names = ",".join(names)
            self.hostfile = self._hostfile("hostfile", names)
            self.sparefile = self._hostfile(
                "sparefile", [host_name(self.count + k) for k in range(1, self.spare + 1)])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.slurm:
            self.slurm.stop()
        self.control("down", check=False)
        self._temporary.cleanup()

    def _hostfile(self, name, hosts):
        path = self.folder / name
        path.write_text("".join(host + "\n" for host in hosts))
        return path

    # --- the cluster ------------------------------------------------------------------------------

    def _argv(self, *words):
        return [str(ROOT / "scripts/cluster"), "--name", self.cluster_name, *map(str, words)]

    def control(self, *words, check=True, text_in=None):
        done = subprocess.run(self._argv(*words), text=True, input=text_in or "", capture_output=True,
                              env=self.environment)
        if check and done.returncode != 0:
            raise RuntimeError(f"scripts/cluster {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def traffic(self, *host):
        """(bytes sent, the same with all headers, bytes received) of the head's card or a host's."""
        counts = {tuple(line.split()[::2][:2]): int(line.split()[1])
                  for line in self.control("traffic", *host).splitlines()}
        sent = counts[("sent", "bytes")]
        return sent, counts.get(("sent", "wire_bytes"), sent), counts[("received", "bytes")]

    def everywhere(self, *command):
        for k in range(1, self.count + self.spare + 1):
            self.control("node", k, *command)

    def forget(self):
        """Hosts as at first contact."""
        self.everywhere("rm", "-rf", "/opt/ds-ops", "/opt/bench")
        self.everywhere("mkdir", "/opt/bench")

    def processor_seconds(self):
        """Of everything that sshd of each host started and that has ended: agents and sessions."""
        total = 0.0
        for k in range(1, self.count + 1):
            stat = self.control("node", k, "sh", "-c", "cat /proc/$(cat /run/sshd.pid)/stat")
            fields = stat.rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return total

    # --- running ----------------------------------------------------------------------------------

    def run(self, *command, meanwhile=None, codes=(0,)):
        """Runs a command on the head. `meanwhile` is called once, when it has started."""
        before = self.traffic()
        begin = time.monotonic()
        with open(self.folder / "out", "w+") as out, open(self.folder / "err", "w+") as err:
            process = subprocess.Popen(self._argv("exec", *command), stdin=subprocess.DEVNULL,
                                       stdout=out, stderr=err, cwd=self.folder, env=self.environment)
            if meanwhile:
                meanwhile(process)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - begin
            process.returncode = code = os.waitstatus_to_exitcode(status)
            out.seek(0), err.seek(0)
            after = self.traffic()
            result = Run(seconds, code, out.read(), err.read(), after[0] - before[0], after[1] - before[1],
                         usage.ru_utime + usage.ru_stime)
        if codes and code not in codes:
            raise RuntimeError(f"{' '.join(map(str, command))}: exit {code}\n{result.out}{result.err}")
        return result

    def install(self, payload, hostfile=None, **how):
        topology = ["--topology", self.options.topology] if self.options.topology else []
        return self.run(self.options.program, "-r", "--json", "-H", hostfile or self.hostfile, "--bundle",
                        payload.bundle, *topology, *self.options.argument, **how)

    def warm(self, payload):
        """What is done once for a payload (unpack, compress) is done, on a host that is not measured."""
        if self.spare and not self.options.cold:
            self.install(payload, hostfile=self.sparefile)

    # --- the others -------------------------------------------------------------------------------

    def pdcp(self, file):
        # Its exit code is 0 even when a copy failed, so what it did is looked at.
        return self._copied(file, self.run("pdcp", "-f", "64", "-w", self.names, file, "/opt/bench/payload"))

    def clush(self, file):
        return self._copied(file, self.run("clush", "-q", "-f", "64", "-w", self.names, "--copy", file,
                                           "--dest", "/opt/bench/payload"))

    def clush_tree(self, file):
        """Through sqrt(N) gateways. They need a key, and python3 with ClusterShell, which they see."""
        gateways = max(2, round(self.count**0.5))
        topology = self.folder / "topology"
        if not topology.exists():
            head = f"/run/dsi-cluster-{self.cluster_name}/head/home/.ssh"
            for k in range(1, gateways + 1):
                for name in ("id_ed25519", "known_hosts"):
                    text = pathlib.Path(head, name).read_text()
                    self.control("node", k, "sh", "-c", f"umask 077; cat >/root/.ssh/{name}", text_in=text)
            middle = f"node[001-{gateways:03d}]"
            topology.write_text(f"[routes]\nhead: {middle}\n{middle}: node[{gateways + 1:03d}-{self.count:03d}]\n")
        return self._copied(file, self.run("clush", "-q", "-f", "64", "--topology", topology, "-w", self.names,
                                           "--copy", file, "--dest", "/opt/bench/payload"))

    def sbcast(self, file):
        if not self.slurm:
            self.slurm = Slurm(self)
            self.slurm.start()
        run = self.slurm.sbcast(file, "/opt/bench/payload")
        begin, end = map(float, run.out.split()[-2:])
        run.seconds = end - begin
        return self._copied(file, run)

    def scp(self, file):
        return self._copied(file, self.run("scp", "-q", file, f"{host_name(1)}:/opt/bench/payload"), hosts=1)

    def _copied(self, file, run, hosts=None):
        size = file.stat().st_size
        for k in range(1, (hosts or self.count) + 1):
            found = self.control("node", k, "sh", "-c", "stat -c %s /opt/bench/payload; rm -f /opt/bench/payload",
                                 check=False).strip()
            if found != str(size):
                raise RuntimeError(f"host {k} has {found or 'none'} of {size} bytes: {run.out}{run.err}")
        return run
