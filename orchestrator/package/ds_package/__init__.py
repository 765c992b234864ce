"""Puts the package of a release into the Python environment of the interpreter that runs this, and
takes it out again. It is bin/ds-package of a release; ds-agent starts it.

    ds-package install  --release FOLDER    the release's wheels, in one transaction
    ds-package rollback --package NAME      what was there before the last one
    ds-package uninstall --package NAME     take it away
    ds-package report   --package NAME      is it whole, and what can be imported?
    ds-package recover  --package NAME      undo a transaction that was cut off

How nothing is lost. pip installs into a folder beside site-packages ("stage"), with --root. There
the files are compared with the wheel's own digests and the modules are imported. Nothing of the
environment has been touched so far. Then the old files are moved out, by rename, to "saved-TOKEN",
and the new ones in, by rename. What is to be moved is written to journal.json before the first
move; the transaction is done when state.json.next is renamed to state.json. Whoever finds a journal
whose token is not the state's moves everything back: same inodes, same bytes, same times.

Two processes do it. The one that was started only waits; the other one, in a session of its own,
works. If the worker is killed, the first one ends what that had started, puts things back at once,
and says which of the two is there now. SIGUSR1 makes it kill the worker itself: that is how a run is
cancelled, after the switch has begun too. If the first one is killed, or standard input ends before
the switch, the worker puts back. If both are, the next contact does.

All state lies in ENVIRONMENT/lib/pythonX.Y/ds-install: whoever sees the environment sees it, also
where several hosts share it.

    environment.lock, journal.json   one of each: packages share folders, scripts and dependencies
    NAME/state.json                  what was installed of one package, and what is kept for rollback

(The shared names have dots; no package's normalised name has one.)

Python 3.6 and later, nothing but the standard library. Answers are JSON objects, one a line, on
descriptor 3 or standard output.
"""
