"""What is asked for."""

import base64
import errno
import json
import os
import sys
import time

from ds_package.answers import BUSY, Busy, COMMITTED, Failure, KEPT_HISTORY, SCHEMA, normalised, say
from ds_package.environment import Environment, check_writable, give_to_owner, program, why_not_writable
from ds_package.files import is_there, read_json, restore_stamps, write_file
from ds_package.imports import PREAMBLE
from ds_package.installed import find_installed, owned_files, read_text
from ds_package.processes import Process, clean_environment, last_lines, run_all, wait_for_go
from ds_package.rests_on import Beside, tell_what_it_rests_on, verified_files
from ds_package.special import SPECIALS
from ds_package.staging import damage_of, digest_of, run_pip
from ds_package.transaction import (
    Lock, is_empty, label_of, prune, read_state, recover, remove_folder, remove_state, switch)
from ds_package.trial import top_levels, try_modules


def read_release(folder):
    try:
        manifest = read_json(os.path.join(folder, "manifest.json"))
    except (Failure, OSError):
        manifest = None
    if not manifest or not manifest.get("packages"):
        raise Failure("the release in %s has no package" % folder)
    return manifest["packages"]


def wheel_identity(path):
    parts = os.path.basename(path).split("-")
    return normalised(parts[0]), parts[1]


def same_record(environment, name, digest):
    found = find_installed(environment, name)
    return len(found) == 1 and record_digest(found[0]) == digest


def record_digest(one):
    path = os.path.join(one.path, "RECORD")
    return digest_of(path) if one.kind == "dist-info" and os.path.exists(path) else ""


def is_held(state, name, there):
    """Whether the dependency that is there is the one that came with the package."""
    digest = (state.get("holds") or {}).get(name)
    return bool(digest) and len(there) == 1 and record_digest(there[0]) == digest


def brought_along(environment, package, state):
    """(name, what is installed of it) of the dependencies that came with the package."""
    for wheel in package.get("dependencies", []):
        name = wheel_identity(wheel)[0]
        there = find_installed(environment, name)
        if is_held(state, name, there):
            yield name, there


def damage_of_dependencies(environment, package, state):
    """The first fault of what came along with the package, or should have; empty: none."""
    for wheel in package.get("dependencies", []):
        name, version = wheel_identity(wheel)
        if not find_installed(environment, name):
            return "%s %s, which %s requires, is missing" % (name, version, package["name"])
    for name, there in brought_along(environment, package, state):
        fault = damage_of(there[0].path)
        if fault:
            return "%s, which came with %s: %s" % (name, package["name"], fault)
    return ""


def new_token():
    return base64.b16encode(os.urandom(8)).decode("ascii").lower()


def with_history(state, action, arguments, origin, to):
    history = list(state.get("history", []))
    history.append({"action": action, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "run": arguments.run, "by": arguments.by, "from": origin, "to": to})
    return history[-KEPT_HISTORY:]


def copy_program(environment):
    """So that a transaction can be undone with nothing but the environment."""
    with open(program(), "rb") as file:
        ours = file.read()
    kept = environment.path("ds-package")
    try:
        with open(kept, "rb") as file:
            if file.read() == ours:
                return
    except OSError:
        pass
    write_file(kept, ours)


def name_of(info):
    return normalised(os.path.basename(info)[:-len(".dist-info")].rpartition("-")[0])


def staged_infos(stage):
    found = []
    for folder, names, _ in os.walk(stage):
        found += [os.path.join(folder, name) for name in names if name.endswith(".dist-info")]
        names[:] = [name for name in names if not name.endswith(".dist-info")]
    return sorted(found)


def install(environment, arguments):
    packages = read_release(arguments.release)
    package = packages[0]
    state = read_state(environment)
    installed = find_installed(environment, package["name"])
    before = label_of(state, installed)
    if state.get("release") and not same_record(environment, package["name"],
                                                state.get("record")):
        # Something else has replaced what we installed.
        state = {key: state[key] for key in ("history", "holds") if key in state}
        before = label_of(state, installed)
    wheels, names, held = [], [], {}
    for one in packages:
        for wheel in [one["wheel"]] + one.get("dependencies", []):
            name, version = wheel_identity(wheel)
            there = find_installed(environment, name)
            if name != package["name"] and [one.version for one in there] == [version]:
                # A dependency that the environment has. Only what we brought is ours to mend.
                ours = is_held(state, name, there)
                if not ours or not damage_of(there[0].path):
                    held.update({name: state["holds"][name]} if ours else {})
                    continue
            wheels.append(os.path.join(arguments.release, wheel))
            names.append(name)
    # Whatever cannot be moved away later is refused now.
    for name in names:
        for one in find_installed(environment, name):
            owned_files(environment, one)
    needed = sum(os.path.getsize(wheel) for wheel in wheels)
    needed += needed // 4 + (4 << 20)
    space = os.statvfs(environment.site)
    free = space.f_bavail * space.f_frsize
    if free < needed:
        raise Failure("%s has %s bytes free; the package needs %s" %
                      (environment.site, "{:,}".format(free), "{:,}".format(needed)),
                      "free space there, or name another environment with --python")
    token = arguments.token
    stage = environment.path("stage-" + token)
    os.makedirs(stage)
    run_pip(environment, wheels, stage, arguments.pip_timeout)
    infos = staged_infos(stage)
    mine = [info for info in infos
            if name_of(info) == package["name"]]
    if len(mine) != 1:
        raise Failure("the wheel %s does not install %s" % (package["wheel"], package["name"]))
    for info in infos:
        fault = damage_of(info)
        if fault:
            raise Failure("pip did not install what the wheel holds: " + fault,
                          "look for a failing disk on this node")
    info = mine[0]
    first = os.path.dirname(info)
    if os.path.realpath(first[len(stage):]) not in environment.sites():
        raise Failure("pip installs into %s and not into %s" % (first[len(stage):],
                                                               environment.site))
    if arguments.drop_in:
        if package["name"] not in SPECIALS:
            raise Failure("--drop-in is for %s; %s has no ops of ours" %
                          (", ".join(sorted(SPECIALS)), package["name"]))
        SPECIALS[package["name"]]().drop_in(arguments.release, first, info,
                                              arguments.module_timeout)
        package = dict(package, modules=special_modules(package, arguments.release, first))
        compile_again(first)
    say(stage="installed beside")
    beside = Beside(environment, stage)
    rows, faults, report, files = try_modules(package, first, top_levels(info),
                                       arguments.module_timeout)
    beside.tried(files, infos)
    say(stage="probed", ops=rows, ds_report=report)
    if faults:
        raise Failure(faults[0], "nothing was changed; install what is missing on the node, or send "
                      "it too with --with-deps")
    wait_for_go()
    repair = state.get("release") == arguments.release_id and \
        bool(state.get("drop_in")) == arguments.drop_in
    action = "repair" if repair else "install"
    came = set(names) - {package["name"]}
    new_state = {"schema": SCHEMA, "token": token, "release": arguments.release_id,
                 "package": package, "drop_in": arguments.drop_in, "record": "",
                 # What a rollback takes away: a repair is part of the install that it repairs.
                 "dependencies": sorted(came | set(state.get("dependencies") or [] if repair
                                                   else [])),
                 "holds": held,
                 "history": with_history(state, action, arguments, before, arguments.release_id)}
    new_state["record"] = digest_of(os.path.join(info, "RECORD"))
    new_state["holds"].update({name_of(one): digest_of(os.path.join(one, "RECORD"))
                               for one in infos if one != info})
    older = state.get("saved") if repair else None
    out = []

    def check(after):
        out.extend(path for path, _ in after["saved"]["units"])
        check_in_place(environment, package, [info[len(stage):] for info in infos], arguments)
        if older:
            # The same again: what rollback goes back to stays what it was.
            after["saved"] = older

    give_to_owner(environment, stage)
    switch(environment, state, names, [[stage, os.sep]], new_state, check)
    beside.tell(out, new_state["units"])
    say(result=RESULTS[action], origin=before, to=arguments.release_id,
        previous=new_state["saved"]["label"])


def special_modules(package, release, site):
    """The modules of the wheel, and those that only our ops give it."""
    modules = {module["name"]: module for module in package.get("modules", [])}
    special = SPECIALS[package["name"]]()
    for name, (own, _) in special.modules(release, site).items():
        modules.setdefault(name, {"name": name, "op": own})
    return [modules[name] for name in sorted(modules)]


def compile_again(site):
    """pip has compiled the wheel's files; ours and the changed ones are compiled here."""
    import compileall
    compileall.compile_dir(os.path.join(site, "deepspeed"), quiet=2)


def check_in_place(environment, package, infos, arguments):
    """The switched environment: every file by its digest, and one process that finds the package
    there. The modules were tried before."""
    for info in infos:
        fault = damage_of(info)
        if fault:
            raise Failure("after the switch, " + fault, "look for what changes files in %s"
                          % environment.site)
    names = top_levels(infos[0])
    for info in infos:
        if name_of(info) == package["name"]:
            names = top_levels(info)
    code = PREAMBLE + "import importlib.util, json\n" \
        "print(json.dumps([importlib.util.find_spec(n).origin for n in sys.argv[2:]]))"
    process = run_all([lambda: Process([sys.executable, "-I", "-B", "-c", code, ""] + names,
                                       clean_environment(), arguments.module_timeout)], 1)[0]
    try:
        origins = json.loads(last_lines(process.text()))
    except ValueError:
        raise Failure("after the switch, Python does not find %s: %s" %
                      (", ".join(names), last_lines(process.text())))
    for name, origin in zip(names, origins):
        if os.path.realpath(origin or "").startswith(environment.site + os.sep) or \
                os.path.realpath(origin or "").startswith(environment.pure + os.sep):
            continue
        raise Failure("after the switch, Python finds %s at %s" % (name, origin),
                      "something comes before %s on its path: remove it there" % environment.site)


def rollback(environment, arguments):
    state = read_state(environment)
    saved = state.get("saved")
    if not saved or not saved["label"]:
        raise Failure("there is nothing to go back to",
                      "install the version that you want by name")
    package = state.get("package") or saved["state"].get("package") or {}
    installed = find_installed(environment, environment.package)
    before = label_of(state, installed)
    if state.get("release") and not same_record(environment, environment.package,
                                                state.get("record")):
        raise Failure("%s was changed since by something else" % environment.package,
                      "install the version that you want by name")
    incoming = [[kept, path] for path, kept in saved["units"]]
    for kept, path in incoming:
        if not os.path.lexists(kept):
            raise Failure("%s, which was kept for a rollback, is gone" % kept,
                          "install the version that you want by name")
    names = sorted(set(saved["names"]) | {environment.package} |
                   set(state.get("dependencies") or []))
    new_state = {"schema": SCHEMA, "token": arguments.token, "release": "",
                 "package": package}
    new_state.update(saved["state"])
    new_state["history"] = with_history(state, "rollback", arguments, before, saved["label"])

    def check(_):
        restore_stamps(saved["stamps"])

    after = switch(environment, state, names, incoming, new_state, check)
    rows = []
    found = find_installed(environment, environment.package)
    if found and found[0].kind == "dist-info" and new_state.get("release"):
        rows, _, _, _ = try_modules(new_state["package"], "", [], arguments.module_timeout)
    say(stage="probed", ops=rows)
    say(result="rolled-back", origin=before, to=label_of(after, found))


def uninstall(environment, arguments):
    state = read_state(environment)
    installed = find_installed(environment, environment.package)
    before = label_of(state, installed)
    if installed and not same_record(environment, environment.package, state.get("record")):
        raise Failure("the %s in %s was not installed by ds-install" %
                      (before if not state.get("release") else environment.package,
                       environment.prefix), "remove it with pip: %s -m pip uninstall %s" %
                      (sys.executable, environment.package))
    if installed:
        new_state = {"schema": SCHEMA, "token": arguments.token, "release": "",
                     "history": with_history(state, "uninstall", arguments, before, "")}

        def check(after):
            after["saved"] = None

        switch(environment, state, [environment.package], [], new_state, check)
    elif not is_empty(state):
        # Something else has removed it; what was kept for a rollback goes as well.
        os.unlink(environment.path("state.json"))
    say(result="uninstalled", origin=before, to="")


def report(environment, arguments):
    state = read_state(environment)
    installed = find_installed(environment, environment.package)
    label = label_of(state, installed)
    if not installed:
        raise Failure("%s is not installed in %s" % (environment.package, environment.prefix),
                      "install it, or name another environment with --python")
    damage, package = "", state.get("package")
    intact = bool(state.get("release")) and \
        same_record(environment, environment.package, state.get("record"))
    if not intact or not package:
        label = label_of({}, installed)
        package = {"name": environment.package, "modules": []}
    if installed[0].kind == "dist-info":
        damage = damage_of(installed[0].path)
    damage = damage or damage_of_dependencies(environment, package, state)
    names = top_levels(installed[0].path)
    rows, faults, verdicts = [], [], {}
    if not arguments.untried:
        rows, faults, verdicts, files = try_modules(package, "", names, arguments.module_timeout)
    say(stage="probed", ops=rows, ds_report=verdicts)
    intact = intact and not damage
    if intact and not arguments.untried and files.known and not faults:
        infos = [installed[0].path] + [there[0].path for name, there in
                                       brought_along(environment, package, state)]
        tell_what_it_rests_on(files.paths - verified_files(infos))
    say(result="reported", origin=label, to=label, damage=damage or (faults + [""])[0],
        intact=intact, drop_in=bool(state.get("drop_in")))


def recover_command(environment, arguments):
    say(result="recovered" if RECOVERED[0] else "nothing to recover",
        to=label_of(read_state(environment), find_installed(environment, environment.package)))


def settle(environment, arguments):
    """After the worker of this run was killed and its transaction undone, unless it had ended."""
    state = read_state(environment)
    if arguments.asked == "uninstall" and not state and \
            not find_installed(environment, environment.package):
        say(result=RESULTS["uninstall"], origin="", to="")  # The state had gone, too.
        return COMMITTED
    if state.get("token") != arguments.token:
        return 0
    last = state["history"][-1]
    say(result=RESULTS[last["action"]], origin=last["from"], to=last["to"])
    return COMMITTED


RECOVERED = [False]
RESULTS = {"install": "installed", "repair": "repaired", "rollback": "rolled-back",
           "uninstall": "uninstalled"}
COMMANDS = {"install": install, "rollback": rollback, "uninstall": uninstall, "report": report,
            "recover": recover_command, "settle": settle}


def lock_for(environment, arguments):
    """None: nothing of ours is there, or this user may only look."""
    changes = arguments.command in ("install", "rollback", "uninstall")
    if changes:
        check_writable(environment)
    elif not os.path.isdir(environment.folder) or why_not_writable(environment.folder):
        return None
    lock = Lock(environment, arguments.lock_timeout, shared=arguments.command == "report")
    if not lock.exclusive and is_there(environment.journal):
        lock.close()
        lock = Lock(environment, arguments.lock_timeout)
    if lock.exclusive:
        lock.name("run %s of %s" % (arguments.run, arguments.by))
        RECOVERED[0] = recover(environment)
        if RECOVERED[0] and arguments.command != "settle":
            say(note="an interrupted install was undone")
    if changes:
        os.makedirs(environment.state_folder, mode=0o755, exist_ok=True)
        copy_program(environment)
    return lock


def work(arguments):
    """In the worker. Returns the exit status."""
    environment = Environment(arguments.package)
    try:
        lock = lock_for(environment, arguments)
        try:
            return COMMANDS[arguments.command](environment, arguments) or 0
        finally:
            if lock is not None and lock.exclusive:
                leave(environment)
    except Failure as failure:
        say(error={"what": failure.what, "help": failure.help})
        if isinstance(failure, Busy):
            return BUSY
    except OSError as error:
        where = " (%s)" % error.filename if error.filename else ""
        help_text = {errno.ENOSPC: "free space in %s" % environment.prefix,
                     errno.EROFS: "the file system of %s is read-only" % environment.prefix,
                     errno.EACCES: "give the right to write there (-s installs with sudo)"}
        say(error={"what": "%s%s" % (error.strerror or error, where),
                   "help": help_text.get(error.errno, "")})
    return 1


def leave(environment):
    """What a run that did nothing has made goes again, and so does what an uninstall has left."""
    try:
        if read_json(environment.journal) is not None:
            return
        state = read_state(environment)
    except (Failure, OSError):
        return  # What it tells of may be all that there is of the old package.
    prune(environment, state)
    if is_empty(state):
        remove_state(environment)
        remove_folder(environment)
    else:
        give_to_owner(environment, environment.folder)
