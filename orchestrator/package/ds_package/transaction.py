"""The transaction: the lock, the journal, the switch, and how it is undone."""

import errno
import fcntl
import json
import os
import time

from ds_package.answers import Busy, Failure, PARTIAL, SCHEMA, normalised, say
from ds_package.environment import Environment, why_not_writable
from ds_package.files import (
    copy_attributes, folder_stamps, folders_below, is_folder, is_there, move, read_json, remove,
    remove_quietly, restore_stamps, sync_file_system, sync_folder, write_file)
from ds_package.installed import find_installed, owned_files, read_text, to_units
from ds_package.processes import watch_input


def make_folder(environment):
    stamps = folder_stamps([os.path.dirname(environment.folder)])
    if not os.path.isdir(environment.folder):
        os.makedirs(environment.folder, mode=0o755, exist_ok=True)
        restore_stamps(stamps)


class Lock:
    """Of the environment. A shared one keeps changes out and lets others look."""

    def __init__(self, environment, wait, shared=False):
        self.exclusive = not shared
        make_folder(environment)
        deadline = time.monotonic() + wait
        while True:
            self.fd = os.open(environment.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self.fd)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if time.monotonic() >= deadline:
                    raise Busy("%s is being changed by another run (%s)" %
                               (environment.prefix,
                                read_text(environment.lock).strip() or "unknown"),
                               "wait for that run to end")
                watch_input(0.1)
                continue
            # The last uninstall may have removed it between the two steps.
            try:
                if os.stat(environment.lock).st_ino == os.fstat(self.fd).st_ino:
                    break
            except OSError:
                make_folder(environment)
            os.close(self.fd)

    def name(self, text):
        try:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, text.encode("utf-8", "replace"), 0)
        except OSError:
            pass  # For people only.

    def close(self):
        os.close(self.fd)


def read_own(path):
    """What a run has left. Of a later ds-install's nothing can be told, so nothing is done."""
    value = read_json(path)
    if value and value.get("schema", SCHEMA) > SCHEMA:
        raise Failure("%s was written by a later ds-install (schema %d; this one knows %d)" %
                      (path, value["schema"], SCHEMA), "use that one; nothing was changed")
    return value


def read_state(environment):
    return read_own(environment.path("state.json")) or {}


def prune(environment, state):
    """Removes what no state needs: stages, what was moved away, trees that are two steps back."""
    keep = {"state.json", "ds-package"}
    if state.get("saved"):
        keep.add("saved-" + state["saved"]["token"])
    try:
        names = os.listdir(environment.state_folder)
    except OSError:
        return
    for name in names:
        if name not in keep:
            remove_quietly(environment.path(name))


def recover(environment):
    """Undoes a transaction that did not end, of whatever package. True if there was one. Can itself
    be cut off anywhere: it starts from the phase that was reached."""
    journal = read_own(environment.journal)
    if journal is None:
        for name in os.listdir(environment.folder):
            if name.startswith("journal."):
                remove_quietly(os.path.join(environment.folder, name))
        prune(environment, read_state(environment))
        return False
    owner = Environment(journal["package"])
    state = read_state(owner)
    undone = state.get("token") != journal["token"]
    if undone:
        undo(owner, journal)
    os.unlink(owner.journal)
    sync_folder(owner.folder)
    for path in (owner.phase, owner.phase_back, owner.path("state.json.next")):
        remove_quietly(path)
    if undone:
        restore_stamps(journal["stamps"])
    prune(owner, state)
    if is_empty(state) and owner.package != environment.package:
        remove_state(owner)
    return undone


def undo(environment, journal):
    phase = "out"
    if is_there(environment.phase):
        with open(environment.phase, encoding="utf-8") as file:
            phase = file.read().strip()
    if phase == "in":
        # All that was to go out is out, so what lies at these places came in.
        trash = environment.path("trash-" + journal["token"])
        kept = environment.path("saved-")
        for number, (source, path) in enumerate(journal["in"]):
            remove(path + PARTIAL)
            if not is_there(path):
                continue
            if source.startswith(kept):
                # Of a rollback: it goes back there, for the next one. Merged with what a move that
                # was cut off had left.
                remove(source + PARTIAL)
                move(path, source)
            else:
                aside = os.path.join(trash, str(number))
                remove(aside)
                move(path, aside)
        for folder in reversed(journal["made"]):
            try:
                os.rmdir(folder)
            except OSError:
                pass
        # Renamed, not written: there may be no space.
        os.rename(environment.phase_back, environment.phase)
        sync_folder(environment.folder)
    for path, saved in reversed(journal["out"]):
        remove(path + PARTIAL)
        if is_there(saved):
            move(saved, path)
    restore_stamps(journal["stamps"])


def is_empty(state):
    """Nothing of ours is installed, and nothing is kept."""
    return not state.get("release") and not state.get("saved")


def remove_state(environment):
    """The program goes last: as long as it is there, an uninstall can be asked for again."""
    try:
        for name in os.listdir(environment.state_folder):
            if name != "ds-package":
                remove_quietly(environment.path(name))
    except FileNotFoundError:
        return
    remove_quietly(environment.state_folder)


def remove_folder(environment):
    """With the lock's file, so this is the last that a run does: from then on another one may work.
    """
    stamps = folder_stamps([os.path.dirname(environment.folder)])
    if os.listdir(environment.folder) != [os.path.basename(environment.lock)]:
        return  # Another package has its state there.
    remove_quietly(environment.lock)
    try:
        os.rmdir(environment.folder)
    except OSError:
        return  # That other run is at work.
    restore_stamps(stamps)


def label_of(state, installed):
    """What is there, in one word for people and for the head: a release's id, or a version."""
    if state.get("release"):
        return state["release"]
    if installed:
        return "%s %s" % (normalised(installed[0].name), installed[0].version)
    return ""


def switch(environment, state, names, incoming, new_state, check):
    """One transaction: the distributions of these names out, and (source, path) pairs in. `check`
    looks at the result, and its Failure undoes all."""
    token = new_state["token"]
    installed = [one for name in names for one in find_installed(environment, name)]
    files, edits = set(), {}
    for one in installed:
        its_files, its_edits = owned_files(environment, one)
        files |= its_files
        edits.update(its_edits)
    made, stage = [], environment.path("edit-" + token)
    for number, (path, text) in enumerate(sorted(edits.items())):
        if text is not None:
            os.makedirs(stage, exist_ok=True)
            edited = os.path.join(stage, str(number))
            with open(edited, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            copy_attributes(os.stat(path), edited)
            incoming = incoming + [[edited, path]]
    units = to_units(environment, files)
    pairs = place(environment, incoming, units, made)
    saved = environment.path("saved-" + token)
    os.makedirs(saved)
    out = [[path, os.path.join(saved, "%d-%s" % (number, os.path.basename(path)))]
           for number, path in enumerate(sorted(units))]
    parents = {os.path.dirname(path) for _, path in pairs} | {os.path.dirname(p) for p, _ in out}
    for path, _ in out:
        reason = why_not_writable(os.path.dirname(path))
        if reason:
            raise Failure(reason, "give the right to write there (-s installs with sudo)")
    stamps = folder_stamps(list(parents) + folders_below(units))
    new_state["saved"] = {
        "token": token, "label": label_of(state, installed), "units": out, "stamps": stamps,
        "state": {key: state.get(key) for key in
                  ("release", "package", "drop_in", "record", "dependencies", "holds")
                  if state.get(key)},
        "names": sorted({normalised(one.name) for one in installed})}
    new_state["units"] = [path for _, path in pairs]
    journal = {"schema": SCHEMA, "package": environment.package, "token": token, "out": out,
               "in": pairs, "made": made, "stamps": stamps, "prefix": environment.prefix}
    # All that an undo needs is there before the first move: the disk may be full by then.
    os.makedirs(environment.path("trash-" + token), exist_ok=True)
    write_file(environment.phase_back, "back")
    sync_file_system(environment.state_folder)
    remove_quietly(environment.phase)
    write_file(environment.journal, json.dumps(journal))
    try:
        for path, kept in out:
            move(path, kept)
        write_file(environment.phase, "in")
        for folder in made:
            os.mkdir(folder)
        for source, path in pairs:
            move(source, path)
        check(new_state)
        # Synced by the file, and with it every rename before: file systems keep their order.
        write_file(environment.path("state.json.next"), json.dumps(new_state, indent=1))
        os.rename(environment.path("state.json.next"), environment.path("state.json"))
        sync_folder(environment.state_folder)
    except BaseException:
        recover(environment)
        raise
    # Done: what follows is tidying up, and recover() does the same.
    try:
        recover(environment)
    except OSError as error:
        say(note="after the switch: %s" % error)
    return new_state


def place(environment, incoming, units, made):
    """Cuts what comes in into moves to free places. What is in the way and belongs to nobody we know
    goes out with the old, so that it can come back."""
    leaving = set(units)

    def goes(path):
        while len(path) > 1:
            if path in leaving:
                return True
            path = os.path.dirname(path)
        return False

    pairs = []

    def put(source, path):
        if goes(path) or not os.path.lexists(path):
            pairs.append([source, path])
        elif is_folder(source) and os.path.isdir(path):
            path = os.path.realpath(path)
            for name in sorted(os.listdir(source)):
                put(os.path.join(source, name), os.path.join(path, name))
        else:
            leaving.add(path)
            units.append(path)
            pairs.append([source, path])

    for source, path in incoming:
        folder, missing = os.path.dirname(path), []
        while goes(folder) or not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        made += [one for one in reversed(missing) if one not in made]
        put(source, path)
    return pairs
