"""A small real package with compiled modules, built by setuptools, and environments to put it into.

Each of its op modules has one way to go: adder works, the others each have a fault.
"""

import hashlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import textwrap

PYTHON = os.environ.get("DSI_TEST_PYTHON", "/usr/bin/python3")

MODULE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
%(declarations)s
static PyObject* value(PyObject* self, PyObject* arguments) {
  (void)self; (void)arguments;
  return PyUnicode_FromString("%(version)s");
}
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "%(name)s", "", -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_%(name)s(void) {
  %(fault)s
  return PyModule_Create(&module);
}
"""
FAULTS = {
    "adder_op": ("", ""),
    "abort_op": ("", "abort();"),
    "raise_op": ("", 'PyErr_SetString(PyExc_RuntimeError, "no device"); return NULL;'),
    "symbol_op": ("int symbol_of_nobody(void);", "symbol_of_nobody();"),
    "absent_op": ("int absent(void);", "absent();"),
}
# As DeepSpeed's modules of these names: the first needs a symbol that the second has.
PAIR = {
    "async_io_op": ("void pinned(void);", "pinned();"),
    "pin_memory_op": ("void pinned(void) {}", ""),
}
# C++, for what it needs of libstdc++: GLIBCXX_3.4.29 throws when a vector gets too long.
CXX_MODULE = """
#include <vector>
#include <Python.h>
static std::vector<double>* all = new std::vector<double>;
static PyObject* value(PyObject*, PyObject* size) {
  all->assign(PyLong_AsSize_t(size), 1.0);
  return PyLong_FromSize_t(all->size());
}
static PyMethodDef methods[] = {{"value", value, METH_O, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "cxx_op", "", -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_cxx_op(void) { return PyModule_Create(&module); }
"""


def run(*argv, **keywords):
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, **keywords)
    if done.returncode != 0:
        raise AssertionError("%s\n%s" % (argv, done.stdout))
    return done.stdout


def source_tree(folder, version, ops=("adder_op",), extra="", name="greet", requires=()):
    folder = pathlib.Path(folder)
    (folder / name / "ops").mkdir(parents=True)
    (folder / name / "__init__.py").write_text('VERSION = "%s"\n%s\n' % (version, extra))
    (folder / name / "main.py").write_text("def main():\n    print('hello from %s')\n" % version)
    (folder / name / "ops" / "__init__.py").write_text("")
    (folder / name / "data.txt").write_text("data of %s\n" % version)
    (folder / name / ("only_in_%s.py" % version.replace(".", "_"))).write_text("")
    (folder / ("%s-tool" % name)).write_text("#!/usr/bin/env python3\nprint('tool %s')\n" % version)
    extensions = []
    for op in ops:
        if op == "cxx_op":
            (folder / "cxx_op.cc").write_text(CXX_MODULE)
            extensions.append("Extension('%s.ops.cxx_op', ['cxx_op.cc'])" % name)
            continue
        declarations, fault = dict(FAULTS, **PAIR)[op]
        (folder / (op + ".c")).write_text(MODULE % {
            "declarations": declarations, "version": version, "name": op, "fault": fault})
        link = ""
        if op == "absent_op":
            (folder / "absent.c").write_text("int absent(void) { return 1; }\n")
            run("cc", "-shared", "-fPIC", folder / "absent.c", "-o", folder / "libabsent.so")
            link = ", libraries=['absent'], library_dirs=[%r]" % str(folder)
        extensions.append("Extension('%s.ops.%s', ['%s.c']%s)" % (name, op, op, link))
    (folder / "setup.py").write_text(textwrap.dedent("""
        from setuptools import Extension, setup
        setup(name=%r, version=%r, packages=[%r, %r], package_data={%r: ["data.txt"]},
              install_requires=%r, scripts=[%r], entry_points={"console_scripts": [%r]}, ext_modules=[%s])
    """) % (name, version, name, name + ".ops", name, list(requires), name + "-tool",
            "%s-say=%s.main:main" % (name, name), ", ".join(extensions)))
    return folder


def build_wheel(folder, version, ops=("adder_op",), extra="", name="greet", requires=()):
    folder = pathlib.Path(folder).resolve()
    tree = source_tree(folder / ("tree-" + version), version, ops, extra, name, requires)
    out = folder / ("wheel-" + version)
    run(PYTHON, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", out,
        tree, env=dict(os.environ, CFLAGS="-O0", PIP_DISABLE_PIP_VERSION_CHECK="1"))
    return next(out.glob("*.whl"))


def make_release(folder, wheel, ops=("adder_op",), dependencies=(), torch=""):
    """What the agent has in its releases; only what ds-package reads of it."""
    folder = pathlib.Path(folder)
    for each in (wheel,) + tuple(dependencies):
        (folder / "wheels").mkdir(parents=True, exist_ok=True)
        shutil.copy(str(each), str(folder / "wheels"))
    name, version = wheel.name.split("-")[:2]
    package = {"name": name, "version": version, "wheel": "wheels/" + wheel.name,
               "dependencies": ["wheels/" + each.name for each in dependencies], "torch": torch,
               "modules": [{"name": "%s.ops.%s" % (name, op), "op": op[:-3]} for op in ops]}
    (folder / "manifest.json").write_text(json.dumps({"packages": [package]}))
    return folder


def make_environment(folder):
    run(PYTHON, "-m", "venv", folder)
    return pathlib.Path(folder)


def site_of(environment):
    return next(pathlib.Path(environment).glob("lib/python3*/site-packages"))


def snapshot(environment):
    """Everything that a change would change: kind, mode, time, content. Not ds-package's own."""
    root = pathlib.Path(environment)
    found = {}
    for folder, names, files in os.walk(str(root)):
        if "ds-install" in names and pathlib.Path(folder).name.startswith("python3"):
            names.remove("ds-install")
        for name in sorted(names + files) + (["."] if folder == str(root) else []):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                content = "-> " + os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                content = "folder"
            else:
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(path, str(root))] = (
                content, oct(status.st_mode), status.st_mtime_ns)
    return found


def differences(before, after):
    return ["%s: %s -> %s" % (path, before.get(path), after.get(path))
            for path in sorted(set(before) | set(after)) if before.get(path) != after.get(path)]


def value_in(environment, name="greet"):
    """What a program of the environment sees."""
    return run(pathlib.Path(environment) / "bin" / "python", "-I", "-B", "-c",
               "import %s, %s.ops.adder_op as op; print(%s.VERSION, op.value())" %
               (name, name, name)).strip()


if __name__ == "__main__":
    # FOLDER VERSION [OP,OP [REQUIREMENT,REQUIREMENT [NAME]]]
    words = sys.argv[3:] + ["adder_op", "", "greet"][len(sys.argv) - 3:]
    lists = [tuple(part for part in word.split(",") if part) for word in words[:2]]
    print(build_wheel(sys.argv[1], sys.argv[2], lists[0], requires=lists[1], name=words[2]))
