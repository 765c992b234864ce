"""The command line, and the two processes."""

import argparse
import os
import re
import signal
import time

import ds_package
from ds_package.answers import BUSY, BY_HAND, COMMITTED, Failure, QUIET, open_answer, say
from ds_package.commands import COMMANDS, new_token, read_release, work
from ds_package.environment import Environment, program
from ds_package.installed import read_text
from ds_package.processes import PR_SET_CHILD_SUBREAPER, WATCHED, prctl
from ds_package.trial import signal_name

WORKER = [0]
CANCELLED = [False]


def cancel(*_):
    CANCELLED[0] = True
    if WORKER[0]:
        os.kill(WORKER[0], signal.SIGKILL)


def supervise(arguments):
    """Waits for the worker. If it is killed, another one puts back what it had moved."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, cancel)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    command, journal = arguments.command, Environment(arguments.package).journal
    ended = run_worker(arguments)
    killed = os.WIFSIGNALED(ended)
    code = 1 if killed else os.WEXITSTATUS(ended)
    if not killed and (code in (0, BUSY) or not os.path.lexists(journal)):
        return 1 if code == BUSY else code
    arguments.asked, arguments.command, arguments.lock_timeout = command, "settle", 60
    WATCHED[0] = False
    status = run_worker(arguments, aside=True)
    settled = 1 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    if settled == COMMITTED:
        return 0
    if settled == BUSY:
        # Whoever has the lock settles what others have left, before anything else.
        what = "another run is at work there now, and puts back first what was there"
    else:
        what = "the environment is as it was" if settled == 0 else \
            "run it again: what is half done there is settled first"
    if CANCELLED[0] and killed:
        say(error={"what": "%s was cancelled" % command, "help": what})
    elif killed:
        say(error={"what": "%s was killed by %s" % (command, signal_name(os.WTERMSIG(ended))),
                   "help": what})
    elif code != 0 and settled not in (0, BUSY):
        say(error={"what": "%s failed, and what it had moved could not be put back: the environment "
                           "is half-way (%s)" % (command, journal),
                   "help": "mend what the error before names, then run it again: that puts back "
                           "what was there"})
    return code


def run_worker(arguments, aside=False):
    """waitpid's status. `aside`: what it has to say but for a result is the reader's no more."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            QUIET[0] = aside
            status = work(arguments)
        except BaseException as error:  # A bug; say so and leave no process behind.
            say(error={"what": "%s: %s" % (type(error).__name__, error), "help": ""})
            status = 70
        finally:
            os._exit(status)
    if not aside:
        WORKER[0] = pid
        if CANCELLED[0]:
            cancel()
    # Its number is its own until it is waited for; a cancel may come until then.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    WORKER[0] = 0
    status = os.waitpid(pid, 0)[1]
    end_family()
    return status


def end_family():
    """Kills what the worker had started and could not end itself: it is our child now."""
    deadline = time.monotonic() + 10  # What waits for a dead disk cannot be killed.
    while time.monotonic() < deadline:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def descendants():
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            # "PID (any name) S PARENT ..."
            fields = read_text("/proc/%s/stat" % name).rpartition(")")[2].split()
            if len(fields) > 1:
                parents[int(name)] = int(fields[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def main():
    open_answer()
    parser = argparse.ArgumentParser(prog="ds-package", description=ds_package.__doc__.split("\n\n")[0])
    parser.add_argument("command", choices=sorted(set(COMMANDS) - {"settle"}))
    parser.add_argument("--release", help="the folder of the release")
    parser.add_argument("--release-id", default="")
    parser.add_argument("--package", help="normalised name")
    parser.add_argument("--drop-in", action="store_true")
    parser.add_argument("--untried", action="store_true",
                        help="report: whether all is whole; no module is imported")
    parser.add_argument("--run", default=BY_HAND)
    parser.add_argument("--by", default="")
    parser.add_argument("--module-timeout", type=int, default=120)
    parser.add_argument("--pip-timeout", type=int, default=600)
    parser.add_argument("--lock-timeout", type=int, default=30)
    parser.add_argument("--ask", action="store_true",
                        help="wait for a byte on standard input before the switch")
    arguments, unknown = parser.parse_known_args()
    # The agent may be of a later ds-install than this copy, which wrote what it is to undo. What is
    # new since then was made so that it can be left out.
    if unknown and arguments.run == BY_HAND:
        parser.error("unknown: " + " ".join(unknown))
    arguments.token = new_token()
    WATCHED[0] = arguments.ask
    try:
        if arguments.command == "install":
            if not arguments.release:
                parser.error("install needs --release")
            arguments.release = os.path.abspath(arguments.release)
            arguments.package = read_release(arguments.release)[0]["name"]
        elif not arguments.package:
            # As kept in the environment: the folder is the package's.
            arguments.package = os.path.basename(os.path.dirname(program()))
        if not re.match(r"^[a-z0-9]+(-[a-z0-9]+)*$", arguments.package):
            raise Failure("\"%s\" is no normalised name of a package" % arguments.package)
    except Failure as failure:
        say(error={"what": failure.what, "help": failure.help})
        return 1
    return supervise(arguments)
