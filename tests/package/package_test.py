"""bin/ds-package on real environments with the real pip."""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import greet  # noqa: E402
from greet import (build_wheel, differences, make_environment, make_release,  # noqa: E402
                   run, site_of, snapshot, source_tree, value_in)

PROGRAM = pathlib.Path(os.environ["DSI_PACKAGE_PROGRAM"])  # ds-package of a build.
# Copying environments and syncing them is what takes the time.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ALL_OPS = tuple(sorted(greet.FAULTS))


class Answer:
    def __init__(self, text, returncode):
        self.returncode = returncode
        self.messages = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        self.text = text

    def get(self, key):
        found = [message[key] for message in self.messages if key in message]
        return found[-1] if found else None

    @property
    def result(self):
        return self.get("result")

    @property
    def what(self):
        return (self.get("error") or {}).get("what", "")

    @property
    def help(self):
        return (self.get("error") or {}).get("help", "")

    def row(self, op):
        return next(row for row in self.get("ops") if row["op"] == op)


def ds_package(environment, *words, before=(), stdin=subprocess.DEVNULL, user=None):
    argv = list(before) + [str(pathlib.Path(environment) / "bin" / "python"), "-I", str(PROGRAM)]
    done = subprocess.run(argv + [str(word) for word in words], stdin=stdin,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                          preexec_fn=(lambda: os.setuid(user)) if user else None)
    answer = Answer(done.stdout, done.returncode)
    answer.stderr = done.stderr
    return answer


class PackageTest(unittest.TestCase):
    """One environment that is copied for each test, and the wheels that all of them use."""

    @classmethod
    def setUpClass(cls):
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="ds-package-", dir=MEMORY))
        cls.addClassCleanup(shutil.rmtree, str(cls.shared), True)
        cls.wheels = {version: build_wheel(cls.shared, version) for version in ("1.0", "2.0")}
        cls.releases = {version: make_release(cls.shared / ("release-" + version), wheel)
                        for version, wheel in cls.wheels.items()}
        cls.template = make_environment(cls.shared / "template")

    def setUp(self):
        # The same path for each: an environment's scripts name it.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ds-package-", dir=MEMORY))
        self.addCleanup(shutil.rmtree, str(self.folder), True)
        self.environment = self.folder / "env"
        run("cp", "-a", self.template, self.environment)
        self.site = site_of(self.environment)

    def pip(self, *words):
        return run(self.environment / "bin" / "python", "-I", "-m", "pip", *words, cwd="/")

    def ds(self, *words, **keywords):
        return ds_package(self.environment, *words, **keywords)

    def install(self, version, *words, **keywords):
        return self.ds("install", "--release", self.releases[version],
                       "--release-id", "id-" + version, *words, **keywords)

    def assert_installed(self, answer):
        self.assertEqual(answer.result, "installed", answer.text + answer.stderr)
        self.assertEqual(answer.returncode, 0)

    def assert_unchanged(self, before):
        self.assertEqual(differences(before, snapshot(self.environment)), [])

    def shared_folder(self):
        return self.site.parent / "ds-install"

    def state_folder(self):
        return self.shared_folder() / "greet"


class InstallTest(PackageTest):
    def test_the_program_is_one_file_of_its_sources_and_nothing_else(self):
        folder = pathlib.Path(__file__).resolve().parents[2] / "orchestrator/package"
        again = self.folder / "again"
        run("python3", folder / "pack.py", again)
        self.assertEqual(again.read_bytes(), PROGRAM.read_bytes())
        with zipfile.ZipFile(str(PROGRAM)) as archive:
            self.assertEqual({info.date_time for info in archive.infolist()},
                             {(1980, 1, 1, 0, 0, 0)})

    def test_an_empty_environment_gets_what_pip_would_have_put_there(self):
        by_pip = self.folder / "by-pip"
        run("cp", "-a", self.template, by_pip)
        run(by_pip / "bin" / "python", "-I", "-m", "pip", "install", "--no-index", "--no-deps",
            self.releases["1.0"] / "wheels" / self.wheels["1.0"].name, cwd="/")
        self.assert_installed(self.install("1.0"))

        def content(environment):
            return {path: what[:2] for path, what in snapshot(environment).items()
                    if not path.endswith((".pyc", "RECORD"))
                    and not path.startswith(("bin/greet", "bin/pip", "bin/activate"))}
        self.assertEqual(differences(content(by_pip), content(self.environment)), [])
        self.assertEqual(value_in(self.environment), "1.0 1.0")
        self.assertEqual(run(self.environment / "bin" / "greet-say").strip(), "hello from 1.0")
        self.assertEqual(run(self.environment / "bin" / "greet-tool").strip(), "tool 1.0")
        self.assertIn("greet", self.pip("list"))

    def test_over_what_pip_installed_and_back_byte_for_byte(self):
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        run(self.environment / "bin" / "python", "-c", "import greet.only_in_1_0, greet.main")
        before = snapshot(self.environment)
        answer = self.install("2.0")
        self.assert_installed(answer)
        self.assertEqual(answer.get("origin"), "greet 1.0")
        self.assertEqual(value_in(self.environment), "2.0 2.0")
        self.assertFalse((self.site / "greet" / "only_in_1_0.py").exists())
        self.assertEqual(len(list(self.site.glob("greet-*.dist-info"))), 1)
        after = snapshot(self.environment)
        back = self.ds("rollback", "--package", "greet")
        self.assertEqual((back.result, back.get("to")), ("rolled-back", "greet 1.0"), back.text)
        self.assert_unchanged(before)
        forward = self.ds("rollback", "--package", "greet")
        self.assertEqual(forward.get("to"), "id-2.0", forward.text)
        self.assert_unchanged(after)
        self.assertEqual(forward.row("adder")["status"], "ok")

    def test_over_an_editable_install_and_back(self):
        tree = source_tree(self.folder / "tree", "0.9")
        self.pip("install", "--no-index", "--no-deps", "--no-build-isolation", "-e", tree)
        before = snapshot(self.environment)
        self.assert_installed(self.install("2.0"))
        self.assertEqual(value_in(self.environment), "2.0 2.0")
        back = self.ds("rollback", "--package", "greet")
        self.assertEqual(back.result, "rolled-back", back.text)
        self.assert_unchanged(before)

    def test_over_a_develop_install_and_back(self):
        tree = source_tree(self.folder / "tree", "0.9")
        run(self.environment / "bin" / "python", "setup.py", "-q", "develop", "--no-deps", cwd=tree)
        other = source_tree(self.folder / "other", "0.1", (), name="other")
        run(self.environment / "bin" / "python", "setup.py", "-q", "develop", "--no-deps",
            cwd=other)
        self.assertTrue((self.site / "greet.egg-link").exists())
        before = snapshot(self.environment)
        answer = self.install("2.0")
        self.assert_installed(answer)
        self.assertEqual(answer.get("origin"), "greet 0.9")
        self.assertEqual(value_in(self.environment), "2.0 2.0")
        paths = (self.site / "easy-install.pth").read_text()
        self.assertNotIn(str(tree), paths)
        self.assertIn(str(other), paths)
        back = self.ds("rollback", "--package", "greet")
        self.assertEqual(back.result, "rolled-back", back.text)
        self.assert_unchanged(before)

    def test_over_an_egg_and_back(self):
        tree = source_tree(self.folder / "tree", "0.9")
        run(self.environment / "bin" / "python", "setup.py", "-q", "install", cwd=tree)
        self.assertEqual(len(list(self.site.glob("greet-0.9-*.egg"))), 1)
        before = snapshot(self.environment)
        self.assert_installed(self.install("2.0"))
        self.assertEqual(value_in(self.environment), "2.0 2.0")
        self.assertEqual(self.ds("rollback", "--package", "greet").result, "rolled-back")
        self.assert_unchanged(before)

    def test_over_an_install_without_a_record_is_refused(self):
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        info = self.site / "greet-1.0.dist-info"
        (info / "RECORD").unlink()
        (info / "INSTALLER").write_text("spack\n")
        before = snapshot(self.environment)
        answer = self.install("2.0")
        self.assertIn("greet 1.0", answer.what)
        self.assertIn("was installed by spack and has no record", answer.what)
        self.assertIn("remove it with the program", answer.help)
        self.assert_unchanged(before)

    def test_the_same_version_again_replaces_what_is_there(self):
        self.pip("install", "--no-index", "--no-deps", self.wheels["2.0"])
        (self.site / "greet" / "__init__.py").write_text('VERSION = "altered"\n')
        (self.site / "greet" / "data.txt").unlink()
        answer = self.install("2.0")
        self.assert_installed(answer)
        self.assertEqual(value_in(self.environment), "2.0 2.0")
        self.assertTrue((self.site / "greet" / "data.txt").exists())

    def test_the_same_release_again_is_a_repair_that_keeps_the_way_back(self):
        self.assert_installed(self.install("1.0"))
        self.assert_installed(self.install("2.0"))
        (self.site / "greet" / "data.txt").write_text("altered")
        report = self.ds("report", "--package", "greet")
        self.assertIn("data.txt is altered", report.get("damage"))
        self.assertEqual(self.install("2.0").result, "repaired")
        self.assertEqual(self.ds("report", "--package", "greet").get("damage"), "")
        self.assertEqual(self.ds("rollback", "--package", "greet").get("to"), "id-1.0")
        self.assertEqual(value_in(self.environment), "1.0 1.0")

    def test_files_of_others_in_the_package_stay(self):
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        (self.site / "greet" / "theirs.py").write_text("mine = True\n")
        before = snapshot(self.environment)
        self.assert_installed(self.install("2.0"))
        self.assertEqual((self.site / "greet" / "theirs.py").read_text(), "mine = True\n")
        self.assertEqual(value_in(self.environment), "2.0 2.0")
        self.assertEqual(self.ds("rollback", "--package", "greet").result, "rolled-back")
        self.assert_unchanged(before)

    def test_a_file_of_nobody_that_is_in_the_way_comes_back(self):
        tool = self.environment / "bin" / "greet-tool"
        tool.write_text("#!/bin/sh\necho mine\n")
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        tool.unlink()
        shutil.rmtree(str(self.site / "greet-1.0.dist-info"))
        tool.write_text("#!/bin/sh\necho mine\n")
        before = snapshot(self.environment)
        self.assert_installed(self.install("2.0"))
        self.assertEqual(run(tool).strip(), "tool 2.0")
        self.assertEqual(self.ds("uninstall", "--package", "greet").result, "uninstalled")
        self.assertNotIn("bin/greet-tool", snapshot(self.environment))
        self.assertIn("bin/greet-tool", before)

    def test_uninstall_leaves_what_was_there_before_the_package(self):
        before = snapshot(self.environment)
        self.assert_installed(self.install("1.0"))
        self.assert_installed(self.install("2.0"))
        run(self.environment / "bin" / "python", "-c", "import greet.main, greet.only_in_2_0")
        self.assertEqual(self.ds("uninstall", "--package", "greet").result, "uninstalled")
        now = snapshot(self.environment)
        changed = differences({path: what[:2] for path, what in before.items()},
                              {path: what[:2] for path, what in now.items()})
        self.assertEqual(changed, [])
        self.assertFalse((self.site.parent / "ds-install").exists())
        self.assertEqual(self.ds("uninstall", "--package", "greet").result, "uninstalled")

    def test_uninstall_does_not_take_what_something_else_installed(self):
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        before = snapshot(self.environment)
        answer = self.ds("uninstall", "--package", "greet")
        self.assertIn("was not installed by ds-install", answer.what)
        self.assertIn("pip uninstall greet", answer.help)
        self.assert_unchanged(before)

    def test_rollback_does_not_undo_what_pip_did_since(self):
        self.assert_installed(self.install("1.0"))
        self.assert_installed(self.install("2.0"))
        self.pip("install", "--no-index", "--no-deps", "--force-reinstall", self.wheels["1.0"])
        before = snapshot(self.environment)
        self.assertIn("was changed since", self.ds("rollback", "--package", "greet").what)
        self.assert_unchanged(before)
        again = self.install("2.0")
        self.assert_installed(again)
        self.assertEqual(again.get("origin"), "greet 1.0")

    def test_rollback_with_nothing_to_go_back_to_is_an_error(self):
        self.assertIn("nothing to go back to", self.ds("rollback", "--package", "greet").what)
        self.assert_installed(self.install("1.0"))
        self.assertIn("nothing to go back to", self.ds("rollback", "--package", "greet").what)
        self.assertEqual(value_in(self.environment), "1.0 1.0")

    def test_a_missing_dependency_comes_with_the_release(self):
        helper = build_wheel(self.folder, "3.0", (), name="helper")
        wheel = build_wheel(self.folder, "4.0", extra="import helper")
        release = make_release(self.folder / "release", wheel)
        answer = self.ds("install", "--release", release, "--release-id", "x")
        self.assertIn("greet cannot be imported: the Python module helper is not on this node",
                      answer.what)
        self.assertIn("--with-deps", answer.help)
        release = make_release(self.folder / "with", wheel, dependencies=[helper])
        self.assert_installed(self.ds("install", "--release", release, "--release-id", "x"))
        self.assertEqual(value_in(self.environment), "4.0 4.0")
        self.assertIn("helper", self.pip("list"))

    def with_helper(self):
        """A release whose package needs another one, which comes along."""
        helper = build_wheel(self.folder, "3.0", (), name="helper")
        wheel = build_wheel(self.folder, "4.0", extra="import helper")
        return make_release(self.folder / "with", wheel, dependencies=[helper])

    def test_a_dependency_that_came_along_and_is_damaged_is_told_and_mended(self):
        release = self.with_helper()
        again = ("install", "--release", release, "--release-id", "x")
        self.assert_installed(self.install("1.0"))
        before = snapshot(self.environment)
        self.assert_installed(self.ds(*again))
        whole = snapshot(self.environment)
        report = ("report", "--package", "greet")
        self.assertTrue(self.ds(*report).get("intact"))
        (self.site / "helper" / "data.txt").write_text("altered")
        answer = self.ds(*report)
        self.assertFalse(answer.get("intact"))
        self.assertIn("helper, which came with greet: helper/data.txt is altered",
                      answer.get("damage"))
        self.assertEqual(self.ds(*again).result, "repaired")
        shutil.rmtree(str(self.site / "helper"))
        for info in self.site.glob("helper-*"):
            shutil.rmtree(str(info))
        answer = self.ds(*report)
        self.assertFalse(answer.get("intact"))
        self.assertIn("helper 3.0, which greet requires, is missing", answer.get("damage"))
        self.assertEqual(self.ds(*again).result, "repaired")
        self.assertTrue(self.ds(*report).get("intact"))
        # The repairs are part of the install: a rollback takes all that it brought.
        self.assertEqual({path: what[0] for path, what in snapshot(self.environment).items()
                          if not path.endswith((".pyc", "RECORD"))},
                         {path: what[0] for path, what in whole.items()
                          if not path.endswith((".pyc", "RECORD"))})
        self.assertEqual(self.ds("rollback", "--package", "greet").get("to"), "id-1.0")
        self.assertEqual([path for path in snapshot(self.environment) if path not in before], [])

    def test_a_repair_of_the_package_keeps_what_a_rollback_takes_away(self):
        release = self.with_helper()
        again = ("install", "--release", release, "--release-id", "x")
        self.assert_installed(self.install("1.0"))
        self.assert_installed(self.ds(*again))
        (self.site / "greet" / "data.txt").write_text("altered")
        self.assertEqual(self.ds(*again).result, "repaired")
        self.assertEqual(self.ds("rollback", "--package", "greet").get("to"), "id-1.0")
        self.assertNotIn("helper", self.pip("list"))

    def test_a_dependency_of_somebody_else_is_left_as_it_is(self):
        release = self.with_helper()
        self.pip("install", "--no-index", "--no-deps", release / "wheels" / next(
            path.name for path in (release / "wheels").glob("helper-*")))
        (self.site / "helper" / "data.txt").write_text("mine")
        again = ("install", "--release", release, "--release-id", "x")
        self.assert_installed(self.ds(*again))
        self.assertTrue(self.ds("report", "--package", "greet").get("intact"))
        self.assertEqual(self.ds(*again).result, "repaired")
        self.assertEqual((self.site / "helper" / "data.txt").read_text(), "mine")

    def test_a_module_of_each_fault_has_its_row(self):
        wheel = build_wheel(self.folder, "5.0", ALL_OPS)
        release = make_release(self.folder / "release", wheel, ALL_OPS)
        shutil.rmtree(str(self.folder / "tree-5.0"))  # With libabsent.so.
        answer = self.ds("install", "--release", release, "--release-id", "x")
        self.assert_installed(answer)
        self.assertEqual(answer.row("adder")["status"], "ok")
        self.assertEqual(answer.row("abort")["status"], "crash")
        self.assertIn("SIGABRT while it was imported", answer.row("abort")["detail"])
        self.assertEqual(answer.row("raise")["status"], "crash")
        self.assertIn("RuntimeError while it was imported: no device",
                      answer.row("raise")["detail"])
        self.assertEqual(answer.row("symbol")["status"], "incompatible")
        self.assertIn("symbol_of_nobody", answer.row("symbol")["detail"])
        self.assertEqual(answer.row("absent"), {
            "op": "absent", "status": "missing", "device": "cpu",
            "detail": "libabsent.so is not on this node"})

    def test_a_module_of_deepspeed_that_needs_another_one_s_symbols_gets_them(self):
        ops = tuple(sorted(greet.PAIR))
        wheel = build_wheel(self.folder, "1.0", ops, name="deepspeed")
        release = make_release(self.folder / "release", wheel, ops)
        answer = self.ds("install", "--release", release, "--release-id", "id")
        self.assertEqual(answer.result, "installed", answer.text)
        self.assertEqual(answer.row("async_io")["status"], "ok", answer.text)
        # The one that is needed is broken: that is a fault of both.
        library = next((site_of(self.environment) / "deepspeed/ops").glob("pin_memory_op.*.so"))
        library.write_bytes(b"")
        report = self.ds("report", "--package", "deepspeed")
        self.assertEqual(report.row("pin_memory")["status"], "damaged", report.text)
        self.assertEqual(report.row("async_io")["status"], "damaged", report.text)

    def test_a_module_that_needs_another_one_s_symbols_has_none_in_another_package(self):
        ops = tuple(sorted(greet.PAIR))
        wheel = build_wheel(self.folder, "1.0", ops, name="other")
        release = make_release(self.folder / "release", wheel, ops)
        answer = self.ds("install", "--release", release, "--release-id", "id")
        self.assertEqual(answer.row("async_io")["status"], "incompatible", answer.text)
        self.assertEqual(answer.row("pin_memory")["status"], "ok", answer.text)

    def test_what_an_import_rests_on_is_told_of_the_places_where_it_is_in_the_end(self):
        # It looks for a folder and a file that are not there.
        wheel = build_wheel(self.folder, "6.0", extra="\n".join((
            "import os", "for look in (os.listdir, open):",
            "    try: look(os.path.join(os.path.dirname(__file__), 'absent'))",
            "    except OSError: pass")))
        release = make_release(self.folder / "release", wheel)
        again = ("install", "--release", release, "--release-id", "x")
        first = self.ds(*again)
        self.assert_installed(first)

        def paths(told):
            return {os.path.join(folder, name) for folder, names in told.items() for name in names}
        own = paths(first.get("rests_on")["own"])
        for path in (self.site, self.site / "greet", self.site / "greet/absent", next(
                (self.site / "greet/__pycache__").glob("__init__.*.pyc"))):
            self.assertIn(str(path), own)
        others = paths(first.get("rests_on")["files"])
        self.assertFalse([path for path in own | others if "stage-" in path])
        self.assertIn(str(self.environment / "pyvenv.cfg"), others)
        # Its digest is the wheel's, which is compared each time.
        self.assertNotIn(str(self.site / "greet/__init__.py"), own | others)
        report = paths(self.ds("report", "--package", "greet").get("rests_on")["files"])
        self.assertEqual(own - {str(self.site.parent)} - report, set())
        self.assertIsNone(self.ds("report", "--package", "greet", "--untried").get("rests_on"))
        # What somebody has added to the package was not there when it was tried.
        (self.site / "greet" / "theirs.py").write_text("")
        self.assert_installed(self.install("2.0"))
        answer = self.ds(*again)
        self.assert_installed(answer)
        self.assertIsNone(answer.get("rests_on"))

    def test_pips_own_settings_decide_nothing(self):
        (self.environment / "pip.conf").write_text(
            "[install]\ntarget = %s\nrequire-hashes = true\n" % (self.folder / "elsewhere"))
        self.assert_installed(self.install("1.0"))
        self.assertEqual(value_in(self.environment), "1.0 1.0")


    def test_what_root_installs_for_a_user_is_the_users(self):
        if os.geteuid() != 0:
            self.skipTest("only root can install for another user")
        run("chown", "-R", "65534:65534", self.environment)
        self.assert_installed(self.install("1.0"))
        self.assert_installed(self.install("2.0"))
        others = run("find", self.environment, "!", "-user", "65534").split()
        self.assertEqual(others, [])


class FailureTest(PackageTest):
    def setUp(self):
        super().setUp()
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        self.before = snapshot(self.environment)

    def assert_refused(self, answer, *texts):
        self.assertEqual(answer.returncode, 1, answer.text)
        self.assertIsNone(answer.result)
        for text in texts:
            self.assertIn(text, answer.what)
        self.assert_unchanged(self.before)
        self.assertEqual(value_in(self.environment), "1.0 1.0")

    def test_a_wheel_for_another_python_is_refused(self):
        other = self.wheels["2.0"].name.replace("cp311-cp311", "cp36-cp36m")
        path = self.folder / other
        shutil.copy(str(self.wheels["2.0"]), str(path))
        release = make_release(self.folder / "release", path)
        self.assert_refused(self.ds("install", "--release", release),
                            "pip failed", "is not a supported wheel on this platform")

    def test_a_wheel_that_is_no_zip_is_refused(self):
        path = self.folder / self.wheels["2.0"].name
        path.write_bytes(b"PK\3\4 but not for long")
        release = make_release(self.folder / "release", path)
        self.assert_refused(self.ds("install", "--release", release), "pip failed")

    def test_a_wheel_whose_bytes_are_not_its_record_is_refused(self):
        path = self.folder / self.wheels["2.0"].name
        shutil.copy(str(self.wheels["2.0"]), str(path))
        (self.folder / "greet").mkdir()
        (self.folder / "greet" / "data.txt").write_text("not what the record says")
        code = ("import sys, zipfile\n"
                "old = zipfile.ZipFile(sys.argv[1]); new = zipfile.ZipFile(sys.argv[2], 'w')\n"
                "for i in old.infolist():\n"
                "    b = old.read(i)\n"
                "    new.writestr(i, b'altered' if i.filename == 'greet/data.txt' else b)\n"
                "new.close()\n")
        run(sys.executable, "-c", code, self.wheels["2.0"], path)
        release = make_release(self.folder / "release", path)
        answer = self.ds("install", "--release", release)
        # pip writes the digest of what it unpacked into RECORD; an older one keeps the wheel's.
        if answer.result == "installed":
            self.skipTest("this pip believes what it unpacks")
        self.assert_refused(answer, "greet/data.txt")

    def test_a_package_that_cannot_be_imported_is_refused(self):
        wheel = build_wheel(self.folder, "6.0", extra="raise RuntimeError('broken on purpose')")
        release = make_release(self.folder / "release", wheel)
        self.assert_refused(self.ds("install", "--release", release),
                            "greet cannot be imported: RuntimeError while it was imported: "
                            "broken on purpose")

    def test_a_package_that_hangs_is_refused_in_time(self):
        wheel = build_wheel(self.folder, "6.0", extra="import time; time.sleep(3600)")
        release = make_release(self.folder / "release", wheel)
        self.assert_refused(self.ds("install", "--release", release, "--module-timeout", 2),
                            "no answer within 2 s")

    def test_no_pip_is_refused(self):
        shutil.rmtree(str(self.site / "pip"))
        self.before = snapshot(self.environment)
        answer = self.install("2.0")
        self.assert_refused(answer, "No module named pip")
        self.assertIn("ensurepip", answer.help)

    def test_a_full_disk_is_refused_before_anything(self):
        big = build_wheel_with_ballast(self.folder, "7.0", 30 << 20)
        release = make_release(self.folder / "release", big)
        with small_disk(self, self.environment, "60m") as environment:
            before = snapshot(environment)
            free = os.statvfs(str(environment))
            with open(str(environment / "filler"), "wb") as file:
                file.write(b"x" * (free.f_bavail * free.f_frsize - (20 << 20)))
            answer = ds_package(environment, "install", "--release", release)
            self.assertIn("bytes free; the package needs", answer.what)
            (environment / "filler").unlink()
            self.assertEqual(only(differences(before, snapshot(environment)), "."), [])

    def test_a_disk_that_fills_while_pip_works_leaves_the_old(self):
        # Compressed, so that it looks as if it would fit.
        big = build_wheel_with_ballast(self.folder, "7.0", 60 << 20, compressed=True)
        release = make_release(self.folder / "release", big)
        with small_disk(self, self.environment, "50m") as environment:
            before = snapshot(environment)
            answer = ds_package(environment, "install", "--release", release)
            self.assertIn("No space left on device", answer.what + answer.help)
            self.assertEqual(only(differences(before, snapshot(environment)), "."), [])
            self.assertEqual(value_in(environment), "1.0 1.0")

    def test_a_read_only_file_system_is_refused(self):
        with small_disk(self, self.environment, "80m") as environment:
            run("mount", "-o", "remount,ro", environment.parent)
            answer = ds_package(environment, "install", "--release", self.releases["2.0"])
            self.assertIn("is on a read-only file system", answer.what)
            self.assertEqual(value_in(environment), "1.0 1.0")
            # What can only be read can be reported.
            self.assertEqual(ds_package(environment, "report", "--package", "greet").result,
                             "reported")

    def test_a_site_packages_of_somebody_else_is_refused(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        os.chmod(str(self.folder), 0o755)
        os.chmod(str(self.shared), 0o755)
        answer = self.install("2.0", user=65534)
        self.assert_refused(answer, "belongs to root, and this user may not write there")
        self.assertIn("--python", answer.help)

    def test_a_head_that_leaves_before_the_switch_leaves_the_old(self):
        # Standard input ends at once: nobody will say "go on".
        answer = self.install("2.0", "--ask")
        self.assert_refused(answer, "the head left before the switch")
        self.assertFalse(self.state_folder().exists())

    def test_a_lock_that_is_held_is_waited_for_and_named(self):
        first = subprocess.Popen(
            [str(self.environment / "bin" / "python"), "-I", str(PROGRAM), "install", "--ask",
             "--release", str(self.releases["2.0"]), "--run", "run-7", "--by", "alice@head"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        while b"probed" not in first.stdout.readline():
            pass
        answer = self.install("2.0", "--lock-timeout", 1)
        self.assert_refused(answer, "is being changed by another run (run run-7 of alice@head)")
        first.stdin.write(b"y")
        first.stdin.close()
        self.assertIn(b'"installed"', first.stdout.read())
        first.stdout.close()
        self.assertEqual(first.wait(), 0)

    def test_another_package_of_the_environment_waits_for_the_same_lock(self):
        other = make_release(self.folder / "other", build_wheel(self.folder, "1.0", name="other"))
        first = subprocess.Popen(
            [str(self.environment / "bin" / "python"), "-I", str(PROGRAM), "install", "--ask",
             "--release", str(other), "--run", "run-7", "--by", "alice@head"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        while b"probed" not in first.stdout.readline():
            pass
        answer = self.install("2.0", "--lock-timeout", 1)
        self.assert_refused(answer, "is being changed by another run (run run-7 of alice@head)")
        first.stdin.close()
        first.stdout.read()
        first.stdout.close()
        self.assertEqual(first.wait(), 1)
        self.assertFalse(self.shared_folder().exists())

    def test_what_a_later_program_has_left_is_not_touched(self):
        self.assert_installed(self.install("2.0"))
        path = self.state_folder() / "state.json"
        state = json.loads(path.read_text())
        state["schema"] += 1
        path.write_text(json.dumps(state))
        before = snapshot(self.environment)
        for words in (("rollback",), ("uninstall",), ("report",)):
            answer = self.ds(*words, "--package", "greet")
            self.assertIn("was written by a later ds-install (schema 2; this one knows 1)",
                          answer.what)
            self.assertEqual(answer.returncode, 1)
        self.assertIn("later ds-install", self.install("1.0").what)
        self.assert_unchanged(before)

    def test_a_word_that_nobody_knows_is_an_error_by_hand_and_none_of_the_agents(self):
        words = ("report", "--package", "greet", "--of-a-later-day")
        answer = self.ds(*words)
        self.assertEqual((answer.returncode, answer.messages), (2, []))
        self.assertIn("unknown: --of-a-later-day", answer.stderr)
        self.assertEqual(self.ds(*words, "--run", "run-7").result, "reported")

    def test_reports_do_not_wait_for_each_other(self):
        self.assert_installed(self.install("2.0"))
        with open(str(self.shared_folder() / "environment.lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # As another report has it.
            report = self.ds("report", "--package", "greet", "--lock-timeout", 0)
            self.assertEqual(report.result, "reported", report.text)
            self.assertIn("is being changed by another run",
                          self.install("1.0", "--lock-timeout", 0).what)


def only(lines, *but):
    """Without the environment's own folder, which a file beside it has changed."""
    return [line for line in lines if not any(line.startswith(path + ":") for path in but)]


def build_wheel_with_ballast(folder, version, size, compressed=False):
    wheel = build_wheel(folder, version)
    code = ("import sys, zipfile, hashlib, base64\n"
            "old = zipfile.ZipFile(sys.argv[1])\n"
            "how = zipfile.ZIP_DEFLATED if sys.argv[4] else zipfile.ZIP_STORED\n"
            "new = zipfile.ZipFile(sys.argv[2], 'w', how)\n"
            "data = b'x' * int(sys.argv[3])\n"
            "d = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')\n"
            "for i in old.infolist():\n"
            "    b = old.read(i)\n"
            "    if i.filename.endswith('RECORD'):\n"
            "        b += ('greet/ballast,sha256=%s,%d\\n' % (d, len(data))).encode()\n"
            "    new.writestr(i.filename, b)\n"
            "new.writestr('greet/ballast', data)\n"
            "new.close()\n")
    out = folder / wheel.name
    run(sys.executable, "-c", code, wheel, out, size, "1" if compressed else "")
    return out


class small_disk:
    """The environment on a tmpfs of its own, at the same path."""

    def __init__(self, test, environment, size):
        self.test, self.environment, self.size = test, environment, size

    def __enter__(self):
        disk = self.environment.parent / "disk"
        disk.mkdir()
        if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=" + self.size, "tmpfs", str(disk)],
                           stderr=subprocess.DEVNULL) != 0:
            self.test.skipTest("this user may not mount a tmpfs")
        self.disk = disk
        run("cp", "-a", self.environment, disk)
        return disk / self.environment.name

    def __exit__(self, *_):
        run("umount", "-l", self.disk)


class KillTest(PackageTest):
    """kill -9 at each of the system calls that change something, one after the other."""

    CALLS = ("rename", "mkdir", "unlink", "rmdir", "fsync", "symlink", "utimensat")

    def setUp(self):
        super().setUp()
        if not shutil.which("strace"):
            self.skipTest("strace is missing")
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        (self.site / "greet" / "theirs.py").write_text("mine = True\n")

    def expect_old_or_new(self, old, new_value, where):
        """After the next contact. True if it is the new."""
        self.ds("recover", "--package", "greet")
        now = snapshot(self.environment)
        if value_in(self.environment) == new_value:
            self.assertEqual(self.ds("report", "--package", "greet").get("damage"), "", where)
            return True
        self.assertEqual(differences(old, now), [], where)
        return False

    def kill_at(self, call, number, *words):
        """Kills each process of the run at its number-th such call. False if none got there."""
        log = self.folder / "strace.log"
        answer = self.ds(*words, before=[
            "strace", "-f", "-q", "-o", str(log), "-e", "trace=" + call,
            "-e", "inject=%s:signal=KILL:when=%d" % (call, number)])
        self.last = answer
        return "killed by SIGKILL" in log.read_text(errors="replace")

    def kill_everywhere(self, words, restore, new_value, then=lambda where: None):
        outcomes = set()
        for call in self.CALLS:
            number = 0
            while True:
                number += 1
                restore()
                old = snapshot(self.environment)
                killed = self.kill_at(call, number, *words)
                where = "%s %s at %s %d: %s" % (words[0], "killed" if killed else "not killed",
                                                call, number, self.last.text)
                outcomes.add(self.expect_old_or_new(old, new_value, where))
                # What is left is much the same from one call to the next; this costs more than they do.
                if number % 4 == 1 or not killed:
                    then(where)
                if not killed:
                    break
                self.assertLess(number, 400)
            self.steps = getattr(self, "steps", 0) + number - 1
        self.assertEqual(outcomes, {True, False})
        self.assertGreater(self.steps, 30)

    def copy_back(self, kept):
        def restore():
            shutil.rmtree(str(self.environment))
            run("cp", "-a", kept, self.environment)
        return restore

    def test_a_rollback_killed_anywhere_leaves_the_old_or_the_new(self):
        self.assert_installed(self.install("2.0"))
        kept = self.folder / "kept"
        run("cp", "-a", self.environment, kept)
        self.kill_everywhere(("rollback", "--package", "greet"), self.copy_back(kept), "1.0 1.0",
                             self.roll_back_again)

    def roll_back_again(self, where):
        """From whatever is there to the other one: what is kept for it has not been lost."""
        other = {"1.0 1.0": "2.0 2.0", "2.0 2.0": "1.0 1.0"}[value_in(self.environment)]
        again = self.ds("rollback", "--package", "greet")
        self.assertEqual(again.result, "rolled-back", where + again.text)
        self.assertEqual(value_in(self.environment), other, where)
        self.assertEqual(self.ds("report", "--package", "greet").get("damage"), "", where)

    def test_a_rollback_that_fails_can_be_done_again(self):
        before = snapshot(self.environment)
        self.assert_installed(self.install("2.0"))
        rollback = ("rollback", "--package", "greet")
        answer = self.faulty("openat", "ENOSPC", ["state.json.next.partial"], *rollback)
        self.assertIn("No space left on device", answer.what)
        self.assertEqual(value_in(self.environment), "2.0 2.0")
        self.assertEqual(self.ds(*rollback).result, "rolled-back")
        self.assert_unchanged(before)

    def test_an_install_killed_at_any_rename_leaves_the_old_or_the_new(self):
        kept = self.folder / "kept"
        run("cp", "-a", self.environment, kept)
        self.CALLS = ("rename",)
        self.steps = 30
        self.kill_everywhere(("install", "--release", self.releases["2.0"], "--release-id", "x"),
                             self.copy_back(kept), "2.0 2.0")

    def stop_then_kill_all(self, number):
        """An install that is stopped at its number-th rename; then all of it is killed at once, as
        when a machine goes down. False if it ended before."""
        log = self.folder / "strace.log"
        log.write_text("")
        process = subprocess.Popen(
            ["strace", "-f", "-q", "-o", str(log), "-e", "trace=rename",
             "-e", "inject=rename:signal=STOP:when=%d" % number,
             str(self.environment / "bin" / "python"), "-I", str(PROGRAM), "install",
             "--release", str(self.releases["2.0"]), "--release-id", "x"],
            stdout=subprocess.PIPE, start_new_session=True)
        stopped = wait_for_stop_or_end(process, log)
        kill_family(process)
        return stopped

    def test_a_machine_that_goes_down_in_the_middle_of_the_switch_is_put_right_later(self):
        before = snapshot(self.environment)
        journals = number = 0
        while True:
            number += 1
            self.assertLess(number, 60)
            if not self.stop_then_kill_all(number):
                break
            journals += (self.shared_folder() / "journal.json").exists()
            answer = self.ds("recover", "--package", "greet")
            self.assertIn(answer.result, ("recovered", "nothing to recover"), answer.text)
            if value_in(self.environment) == "2.0 2.0":
                self.assertEqual(self.ds("rollback", "--package", "greet").result, "rolled-back")
            self.assertEqual(differences(before, snapshot(self.environment)), [], number)
        self.assertGreater(journals, 5)

    def run_until(self, renames, *words, stdin=subprocess.DEVNULL):
        """A run whose worker stops for good after so many renames."""
        log = self.folder / "strace.log"
        log.write_text("")
        process = subprocess.Popen(
            ["strace", "-f", "-q", "-o", str(log), "-e", "trace=rename",
             "-e", "inject=rename:signal=STOP:when=%d" % renames,
             str(self.environment / "bin" / "python"), "-I", str(PROGRAM)] +
            [str(word) for word in words], stdin=stdin, stdout=subprocess.PIPE)
        return process, wait_for_stop_or_end(process, log)

    def cancel(self, process):
        """Asks the first of the two processes to end the other one; its answer."""
        supervisor = family(process.pid)[1]
        os.kill(supervisor, signal.SIGUSR1)
        text = process.stdout.read().decode()
        process.stdout.close()
        return Answer(text, process.wait())

    def test_a_run_that_is_cancelled_has_put_back_or_says_that_it_was_done(self):
        install = ("install", "--release", self.releases["2.0"], "--release-id", "x")
        before, outcomes = snapshot(self.environment), []
        for number in range(1, 60):
            process, stopped = self.run_until(number, *install)
            answer = self.cancel(process) if stopped else None
            if not stopped:
                process.stdout.close()
                break
            if answer.returncode == 0:
                self.assertEqual((answer.result, answer.get("origin"), answer.get("to")),
                                 ("installed", "greet 1.0", "x"), answer.text)
                self.assertEqual(value_in(self.environment), "2.0 2.0")
                back = self.ds("rollback", "--package", "greet")
                self.assertEqual(back.result, "rolled-back", back.text)
            else:
                self.assertEqual(answer.what, "install was cancelled", answer.text)
                self.assertEqual(answer.help, "the environment is as it was")
            self.assertEqual(differences(before, snapshot(self.environment)), [], number)
            outcomes.append(answer.returncode)
        self.assertEqual(set(outcomes), {0, 1})
        self.assertFalse(stopped)

    def test_what_a_killed_worker_had_started_ends_too(self):
        started = self.folder / "started"
        # A grandchild in a session of its own: nobody's group, nobody's child.
        wheel = build_wheel(self.folder, "6.0", extra="\n".join((
            "import os, subprocess, time",
            "subprocess.Popen(['/bin/sh', '-c', 'echo $$ >%s.new; mv %s.new %s; exec sleep 3600'],"
            " start_new_session=True)" % (started, started, started),
            "time.sleep(3600)")))
        release = make_release(self.folder / "release", wheel)
        before = snapshot(self.environment)
        process = subprocess.Popen(
            [str(self.environment / "bin" / "python"), "-I", str(PROGRAM), "install", "--release",
             str(release)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        while not started.exists():
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        worker = family(process.pid)[1]
        others = family(worker)[1:] + [int(started.read_text())]
        self.assertGreater(len(others), 1)
        os.kill(worker, signal.SIGKILL)
        answer = Answer(process.stdout.read().decode(), process.wait())
        process.stdout.close()
        self.assertEqual(answer.what, "install was killed by SIGKILL", answer.text)
        self.assertEqual([pid for pid in others if is_running(pid)], [])
        self.assertEqual(differences(before, snapshot(self.environment)), [])

    def test_an_uninstall_killed_anywhere_leaves_the_package_or_nothing(self):
        shutil.rmtree(str(self.environment))
        run("cp", "-a", self.template, self.environment)
        empty = {path: what[:2] for path, what in snapshot(self.environment).items()}
        self.assert_installed(self.install("2.0"))
        kept = self.folder / "kept"
        run("cp", "-a", self.environment, kept)
        restore, uninstall = self.copy_back(kept), ("uninstall", "--package", "greet")
        ended = set()
        for call in ("rename", "unlink", "rmdir", "fsync"):
            for number in range(1, 400):
                restore()
                killed = self.kill_at(call, number, *uninstall)
                where = "%s %d: %s" % (call, number, self.last.text)
                gone = not (self.site / "greet").exists()
                if gone:
                    # The second worker may have been killed like the first.
                    known = self.last.result == "uninstalled" and self.last.returncode == 0
                    self.assertTrue(known or "is settled first" in self.last.help, where)
                else:
                    self.assertEqual(self.last.returncode, 1, where)
                    self.assertEqual(value_in(self.environment), "2.0 2.0", where)
                ended.add(gone)
                # What comes next finds a place in order.
                if number % 3 == 0:
                    answer = self.install("1.0")
                    self.assert_installed(answer)
                self.assertEqual(self.ds(*uninstall).result, "uninstalled", where)
                self.assertFalse(self.shared_folder().exists(), where)
                now = {path: what[:2] for path, what in snapshot(self.environment).items()}
                self.assertEqual(differences(empty, now), [], where)
                if not killed:
                    break
        self.assertEqual(ended, {True, False})

    def test_a_machine_that_goes_down_in_an_uninstall_is_put_right_by_whatever_comes(self):
        self.assert_installed(self.install("2.0"))
        kept = self.folder / "kept"
        run("cp", "-a", self.environment, kept)
        restore, ended = self.copy_back(kept), set()
        for number in range(1, 60):
            restore()
            process, stopped = self.run_until(number, "uninstall", "--package", "greet")
            kill_family(process)
            if not stopped:
                break
            self.assert_installed(self.install("1.0"))
            self.assertEqual(value_in(self.environment), "1.0 1.0")
            self.assertEqual(self.ds("uninstall", "--package", "greet").result, "uninstalled")
            self.assertFalse(self.shared_folder().exists(), number)
            ended.add(number)
        self.assertFalse(stopped)
        self.assertGreater(len(ended), 5)

    def test_what_one_package_has_left_half_way_is_put_back_by_another_ones_run(self):
        other = make_release(self.folder / "other", build_wheel(self.folder, "1.0", name="other"))
        before = snapshot(self.environment)
        number = 0
        while not (self.shared_folder() / "journal.phase").exists():
            number += 1
            self.assertTrue(self.stop_then_kill_all(number))
        answer = self.ds("install", "--release", other, "--release-id", "y")
        self.assert_installed(answer)
        self.assertEqual(answer.get("note"), "an interrupted install was undone")
        self.assertEqual(value_in(self.environment), "1.0 1.0")
        self.assertEqual(value_in(self.environment, "other"), "1.0 1.0")
        self.assertFalse(self.state_folder().exists())
        self.assertEqual(self.ds("uninstall", "--package", "other").result, "uninstalled")
        now = snapshot(self.environment)
        self.assertEqual(differences({path: what[:2] for path, what in before.items()},
                                     {path: what[:2] for path, what in now.items()}), [])

    def faulty(self, call, error, paths, *words, when="1+"):
        """A run for which this system call on one of these files of the state fails."""
        before = ["strace", "-f", "-q", "--seccomp-bpf", "-o", str(self.folder / "strace.log"), "-e",
                  "trace=" + call, "-e", "inject=%s:error=%s:when=%s" % (call, error, when)]
        for path in paths:
            before += ["-P", os.path.normpath(str(self.state_folder() / path))]
        answer = self.ds(*words, before=before)
        self.assertIn("(INJECTED)", (self.folder / "strace.log").read_text(errors="replace"))
        return answer

    def test_a_disk_that_fills_in_the_switch_leaves_the_old(self):
        before = snapshot(self.environment)
        # The first is the phase "in"; from the state of the new package on there is no space.
        answer = self.faulty("openat", "ENOSPC",
                             ("../journal.phase.partial", "state.json.next.partial",
                              "../journal.json.partial"),
                             "install", "--release", self.releases["2.0"], when="3+")
        self.assertIn("No space left on device", answer.what)
        self.assert_unchanged(before)
        self.assert_installed(self.install("2.0"))

    def test_an_environment_that_cannot_be_put_back_is_said_to_be_half_way(self):
        before = snapshot(self.environment)
        answer = self.faulty("rename,unlink", "EIO", ("state.json.next", "../journal.back"),
                             "install", "--release", self.releases["2.0"])
        self.assertIn("the environment is half-way", answer.what)
        self.assertEqual(answer.returncode, 1)
        self.assertEqual(self.ds("recover", "--package", "greet").result, "recovered")
        self.assert_unchanged(before)

    def test_a_journal_that_cannot_be_read_costs_nothing(self):
        before = snapshot(self.environment)
        self.faulty("rename,unlink", "EIO", ("state.json.next", "../journal.back"),
                    "install", "--release", self.releases["2.0"])
        recover = ("recover", "--package", "greet")
        for name in ("../journal.json", "../journal.phase"):
            answer = self.faulty("openat", "EIO", [name], *recover)
            self.assertEqual(answer.returncode, 1)
            self.assertIn("the environment is half-way", answer.what)
        for name in ("../journal.json", "state.json"):
            path = self.state_folder() / name
            text = path.read_text() if path.exists() else None
            path.write_text("{")
            answer = self.ds(*recover)
            self.assertEqual(answer.returncode, 1)
            self.assertRegex(answer.what, "is damaged|the environment is half-way")
            path.unlink()
            if text is not None:
                path.write_text(text)
        self.assertEqual(self.ds(*recover).result, "recovered")
        self.assert_unchanged(before)

    def test_what_lies_in_the_environment_is_enough_to_put_it_right(self):
        before = snapshot(self.environment)
        number = 0
        while not (self.shared_folder() / "journal.phase").exists():
            number += 1
            self.assertTrue(self.stop_then_kill_all(number))
        run(self.environment / "bin" / "python", "-I", self.state_folder() / "ds-package",
            "recover")
        self.assertEqual(differences(before, snapshot(self.environment)), [])


def family(pid):
    found = [pid]
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            for child in file.read().split():
                found += family(int(child))
    except OSError:
        pass
    return found


def kill_family(process):
    """All at once, as when a machine goes down."""
    for pid in family(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    process.stdout.close()
    process.wait()


def is_running(pid):
    """Not one that is only waited for."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_stop_or_end(process, log):
    """True once a process of the run has been stopped by the injected signal."""
    for _ in range(3000):
        if process.poll() is not None:
            return False
        if "stopped by SIGSTOP" in log.read_text(errors="replace"):
            return True
        time.sleep(0.02)
    raise AssertionError("neither stopped nor ended")


class OverlayTest(PackageTest):
    def test_folders_that_the_kernel_will_not_rename_are_moved_file_by_file(self):
        self.pip("install", "--no-index", "--no-deps", self.wheels["1.0"])
        lower = self.environment
        merged, scratch = self.folder / "merged", self.folder / "scratch"
        scratch.mkdir()
        if subprocess.call(["mount", "-t", "tmpfs", "tmpfs", str(scratch)],
                           stderr=subprocess.DEVNULL) != 0:
            self.skipTest("this user may not mount a tmpfs")
        self.addCleanup(run, "umount", "-l", scratch)
        for name in ("upper", "work"):
            (scratch / name).mkdir()
        merged.mkdir()
        if subprocess.call(["mount", "-t", "overlay", "-o", "lowerdir=%s,upperdir=%s,workdir=%s" % (
                lower, scratch / "upper", scratch / "work"), "overlay", str(merged)],
                stderr=subprocess.DEVNULL) != 0:
            self.skipTest("this user may not mount an overlay")
        self.addCleanup(run, "umount", "-l", merged)
        with self.assertRaises(OSError):
            os.rename(str(site_of(merged) / "pip"), str(merged / "pip"))
        before = snapshot(merged)
        answer = ds_package(merged, "install", "--release", self.releases["2.0"],
                            "--release-id", "x")
        self.assert_installed(answer)
        self.assertEqual(value_in(merged), "2.0 2.0")
        self.assertEqual(ds_package(merged, "rollback", "--package", "greet").result,
                         "rolled-back")
        self.assertEqual(only(differences(before, snapshot(merged)), "."), [])


if __name__ == "__main__":
    unittest.main()
