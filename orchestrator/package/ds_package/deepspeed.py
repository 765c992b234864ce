"""What is special to DeepSpeed on a node: ds_report, installed_ops, our ops in place of its own."""

import ast
import os
import re
import shutil
import sys

from ds_package.answers import Failure
from ds_package.imports import PREAMBLE
from ds_package.installed import read_text
from ds_package.processes import Process, clean_environment, last_lines, run_all
from ds_package.staging import rewrite_record


class DeepSpeed:
    """ds_report, and our ops under its names."""

    OPS_FOLDER = "deepspeed/ops/ds_install"
    REPORT = "from deepspeed.env_report import cli_main; sys.argv[1:] = []; cli_main()"
    BUILD_FILE = "deepspeed/git_version_info_installed.py"
    # Ops that use the symbols of another one's module: DeepSpeed's load() of the op loads that one
    # before, for all to see.
    LOADED_BEFORE = {"async_io": ["pin_memory"], "gds": ["pin_memory"]}

    def report_argv(self, first):
        code = PREAMBLE + self.REPORT
        return [sys.executable, "-I", "-B", "-c", code, first]

    def verdicts(self, text):
        """{op: (installed, compatible)} of what ds_report prints."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        return {name: (installed == "YES", compatible == "OKAY") for name, installed, compatible in
                re.findall(r"^(\w+)\s*\.+\s*\[(YES|NO)\]\s*\.+\s*\[(OKAY|NO)\]", plain, re.M)}

    def names(self, site):
        """The ops that this version has a builder for, on whatever accelerator."""
        found = set()
        for folder, _, files in os.walk(os.path.join(site, "deepspeed/ops/op_builder")):
            for name in files:
                if name.endswith(".py"):
                    found.update(re.findall(r"^    NAME = ['\"](\w+)['\"]",
                                            read_text(os.path.join(folder, name)), re.M))
        return found

    def modules(self, release, site):
        """{DeepSpeed's module: (our module, op)} of the ops that the release brings and this
        DeepSpeed has."""
        text = read_text(os.path.join(release, "python/ds_ops/deepspeed/__init__.py"))
        found = re.search(r"^MODULES = (\{.*?^\})", text, re.M | re.S)
        table = ast.literal_eval(found.group(1)) if found else {}
        names = self.names(site)
        return {module: (own, op) for own, (module, op) in table.items()
                if own in names and os.path.exists(os.path.join(release, "lib", "libds_%s.so" % op))}

    def drop_in(self, release, site, info, seconds):
        modules = self.modules(release, site)
        if not modules:
            raise Failure("the release has no op that can stand in for one of DeepSpeed's",
                          "build it with --drop-in and with ops that DeepSpeed has")
        changed, gone = set(), set()

        def write(path, text):
            with open(os.path.join(site, path), "w", encoding="utf-8") as file:
                file.write(text)
            changed.add(path)

        for folder in ("lib", "ops", "python"):
            source = os.path.join(release, folder)
            for below, _, names in os.walk(source):
                for name in names:
                    full = os.path.join(below, name)
                    path = os.path.join(self.OPS_FOLDER, os.path.relpath(full, release))
                    os.makedirs(os.path.dirname(os.path.join(site, path)), exist_ok=True)
                    shutil.copyfile(full, os.path.join(site, path))
                    os.chmod(os.path.join(site, path), 0o644)
                    changed.add(path)
        write(self.OPS_FOLDER + "/__init__.py", '"""Ops that ds-install --drop-in put here."""\n')
        write(self.OPS_FOLDER + "/python/__init__.py", "")
        package = self.OPS_FOLDER.replace("/", ".") + ".python.ds_ops.deepspeed."
        builders = []
        for module, (own, op) in sorted(modules.items()):
            path = module.replace(".", "/")
            folder, name = os.path.split(path)
            # Some modules are compiled into a folder that has no source file.
            os.makedirs(os.path.join(site, folder), exist_ok=True)
            for entry in os.listdir(os.path.join(site, folder)):
                # A compiled module would be found before ours.
                if entry.startswith(name + ".") and entry.endswith((".so", ".py")):
                    os.unlink(os.path.join(site, folder, entry))
                    gone.add(os.path.join(folder, entry))
            text = '"""The op %s of ds-install under DeepSpeed\'s name."""\n' \
                "from %s%s import *  # noqa: F401,F403\n" % (op, package, own)
            if any(own in before for before in self.LOADED_BEFORE.values()):
                text += "# DeepSpeed would open it as a library.\n__file__ = None\n"
            write(path + ".py", text)
            builders.append(own)
        self.mark_installed(site, builders, changed, seconds)
        rewrite_record(info, changed, gone - changed)
        return sorted(changed)

    def mark_installed(self, site, ops, changed, seconds):
        """DeepSpeed loads a module that is installed only if it was made for the accelerator that
        is there. Ours are for whatever is; what the wheel brings for another one is not."""
        code = PREAMBLE + "from deepspeed.accelerator import get_accelerator\n" \
            "print(get_accelerator()._name)"
        process = run_all([lambda: Process([sys.executable, "-I", "-B", "-c", code, site],
                                           clean_environment(), seconds)], 1)[0]
        here = last_lines(process.text()) if process.status == 0 else ""
        path = os.path.join(site, self.BUILD_FILE)
        text = read_text(path)
        lines = [text.rstrip("\n") if text else "installed_ops = {}", "",
                 "# By ds-install --drop-in.", "_ours = %r" % sorted(ops)]
        built_for = re.search(r"^accelerator_name\s*=\s*['\"](\w*)", text, re.M)
        if built_for and re.match(r"^\w+$", here) and built_for.group(1) != here:
            lines += ["accelerator_name = %r" % here,
                      "installed_ops.update({op: False for op in installed_ops})"]
        lines.append("installed_ops.update({op: True for op in _ours})")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        changed.add(self.BUILD_FILE)
