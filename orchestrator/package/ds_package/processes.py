"""Running other programs."""

import ctypes
import os
import select
import signal
import subprocess
import time

from ds_package.answers import HeadLeft

WATCHED = [False]  # Whether the end of standard input means that the head has left.


def head_left(wait=0.0):
    if not WATCHED[0]:
        time.sleep(wait)
        return False
    # Nothing is sent before wait_for_go(): what can be read is the end.
    return bool(select.select([0], [], [], wait)[0])


def watch_input(wait):
    if head_left(wait):
        raise HeadLeft()


def wait_for_go():
    """The head has seen the rows and says whether to go on."""
    if not WATCHED[0]:
        return
    if os.read(0, 1) == b"":
        raise HeadLeft()
    WATCHED[0] = False  # From here to the end, whoever may leave.


PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option, value):
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (AttributeError, OSError):
        pass  # A C library without it: what is killed leaves its children behind.


def die_with(parent):
    """For a new process: it ends when the worker does, however that ends."""
    def set_up():
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(126)
    return set_up


class Process:
    """In a group of its own; its output is kept from the end."""

    def __init__(self, argv, environment, seconds, keep=4000):
        self.keep = keep
        self.output = b""
        self.deadline = time.monotonic() + seconds
        self.status = None
        self.timed_out = False
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, env=environment, cwd="/",
                                        start_new_session=True,
                                        preexec_fn=die_with(os.getpid()))
        os.set_blocking(self.process.stdout.fileno(), False)

    def drain(self):
        while True:
            try:
                piece = os.read(self.process.stdout.fileno(), 65536)
            except BlockingIOError:
                return
            if not piece:
                return
            self.output = (self.output + piece)[-self.keep:]

    def ended(self):
        self.drain()
        if self.status is None and self.process.poll() is None:
            if time.monotonic() < self.deadline:
                return False
            self.timed_out = True
        self.close()
        return True

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.status = self.process.wait()
        self.drain()
        self.process.stdout.close()

    def text(self):
        return self.output.decode("utf-8", "replace")


def run_all(starts, at_once):
    """Calls each start() to get a Process; at most so many at a time. In the given order."""
    waiting, running, done = list(enumerate(starts)), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, start = waiting.pop(0)
                running[number] = start()
            fds = [one.process.stdout.fileno() for one in running.values()]
            select.select(fds, [], [], 0.05)
            watch_input(0)
            for number in list(running):
                if running[number].ended():
                    done[number] = running.pop(number)
            if running:
                time.sleep(0.01)
    finally:
        for one in running.values():
            one.close()
    return [done[number] for number in sorted(done)]


def last_lines(text, count=1):
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return " / ".join(line.strip() for line in lines[-count:])[-400:]


def clean_environment():
    """pip's own settings (an index, a target, a required hash) must not decide what happens here."""
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("PIP_", "PYTHON"))}
    clean.update({"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INPUT": "1", "LC_ALL": "C.UTF-8",
                  "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"})
    return clean
