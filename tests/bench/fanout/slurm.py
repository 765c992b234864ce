"""Slurm on the hosts of the benchmark, for sbcast; scripts/dev/cluster-slurm starts it."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Slurm:
    def __init__(self, hosts):
        self.hosts = hosts

    def start(self):
        self.hosts.environment["SLURM_CONF"] = self._control("conf").strip()
        # A large file in many pieces keeps slurmd busy for longer than Slurm's default patience.
        self._control("start", DSI_SLURM_MESSAGE_TIMEOUT="300")

    def stop(self):
        self._control("stop")

    def _control(self, word, **environment):
        return subprocess.run([ROOT / "scripts/dev/cluster-slurm", self.hosts.cluster_name, word], check=True,
                              stdout=subprocess.PIPE, text=True, env={**self.hosts.environment, **environment}).stdout

    def sbcast(self, file, to):
        """What sbcast alone takes, without getting the allocation."""
        return self.hosts.run(
            "salloc", "-Q", f"-N{self.hosts.count}", "sh", "-c",
            'begin=$(date +%s.%N); sbcast -f "$1" "$2" || exit; end=$(date +%s.%N); echo "$begin $end"', "sh", file, to)
