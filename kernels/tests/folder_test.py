"""The folder shape: op.json, ops.json, what is installed, and that a build can be repeated."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

KERNELS = pathlib.Path(os.environ["DS_KERNELS_DIR"])
BUILD = pathlib.Path(os.environ["DS_BUILD_DIR"])
OPS_BINARY_DIR = pathlib.Path(os.environ["DS_OPS_BINARY_DIR"])
CMAKE = os.environ["DS_CMAKE"]

GOOD = {
    "name": "toy",
    "description": "A toy",
    "capability": "op.toy",
    "devices": ["cpu"],
    "sources": ["toy.cpp"],
    "library": "ds_toy",
}

TOY_SOURCE = """
#include "toy.h"
#include <cstdio>
int ds_self_test_toy(const char*, char* detail, unsigned long size) {
  std::snprintf(detail, size, "%s", __FILE__);
  return DS_SELF_TEST_OK;
}
"""
TOY_HEADER = """#pragma once
#include "ds_op.h"
extern "C" DS_EXPORT int ds_self_test_toy(const char*, char*, unsigned long);
"""


def run(*command, **options):
    return subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, **options)


def write_op(parent, op, name=None, source=TOY_SOURCE):
    name = name or op["name"]
    folder = pathlib.Path(parent) / name
    folder.mkdir(parents=True)
    (folder / "op.json").write_text(op if isinstance(op, str) else json.dumps(op))
    (folder / "toy.cpp").write_text(source.replace("toy", name))
    (folder / f"{name}.cu").write_text("// Of a device.\n")
    (folder / f"{name}.h").write_text(TOY_HEADER.replace("toy", name))
    return folder / "op.json"


class Temporary(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ds-folder-"))
        self.addCleanup(shutil.rmtree, self.dir)

    def configure(self, build, *options, source=KERNELS, **how):
        # A small list of ops and no torch: what is tested is the same, and it takes a second.
        return run(CMAKE, "-G", "Ninja", "-S", source, "-B", build,
                   f"-DCMAKE_BUILD_TYPE={os.environ['DS_BUILD_TYPE']}",
                   f"-DCMAKE_CXX_COMPILER={os.environ['DS_CXX']}",
                   f"-DCMAKE_CXX_FLAGS={os.environ['DS_CXX_FLAGS']}",
                   "-DDS_BUILD_TESTS=OFF", *options, **how)


class OpJson(Temporary):
    """One op.json, read by CMake in script mode."""

    def read(self, op, name="toy"):
        file = write_op(self.dir / str(len(list(self.dir.iterdir()))), op, name)
        script = self.dir / "read.cmake"
        script.write_text(f'cmake_minimum_required(VERSION 3.23)\ninclude("{KERNELS}/cmake/DsOp.cmake")\n'
                          f'_ds_read_op("{file}")\n_ds_check_requirements()\n'
                          f'message("name ${{OP_NAME}} devices ${{OP_DEVICES}} reason ${{reason}}")\n')
        return run(CMAKE, "-P", script), file

    def refused(self, key, what, op, name="toy"):
        result, file = self.read(op, name)
        text = " ".join(result.stdout.split())
        self.assertNotEqual(result.returncode, 0, text)
        self.assertIn(str(file), text.replace("\n", ""))
        if key:
            self.assertIn(f'key "{key}"', text)
        self.assertIn(what, text)

    def test_the_smallest_op_is_read(self):
        result, _ = self.read(GOOD)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("name toy devices cpu", result.stdout)

    def test_what_is_no_json_object_is_refused(self):
        self.refused(None, "is not JSON", '{"name": ')
        self.refused(None, "one JSON object", '[1]')

    def test_every_missing_key_is_named(self):
        for key in GOOD:
            self.refused(key, "is missing", {k: v for k, v in GOOD.items() if k != key})

    def test_unknown_keys_are_named_at_every_level(self):
        self.refused("colour", "is not known", {**GOOD, "colour": "red"})
        self.refused("requirements.tourch", "is not known",
                     {**GOOD, "requirements": {"tourch": {}}})
        torch = {"min": "1.13", "message": "m", "remedy": "r"}
        self.refused("requirements.torch.minimum", "is not known",
                     {**GOOD, "requirements": {"torch": {**torch, "minimum": "2"}}})
        self.refused("deepspeed.modul", "is not known",
                     {**GOOD, "deepspeed": {"modul": "x", "build_var": "Y"}})

    def test_wrong_types_are_named(self):
        self.refused("devices", "must be of type array", {**GOOD, "devices": "cpu"})
        self.refused("name", "must be of type string", {**GOOD, "name": 3})
        self.refused("requirements.torch.min", "must be of type string",
                     {**GOOD, "requirements": {"torch": {"min": 2, "message": "m", "remedy": "r"}}})

    def test_names_that_could_be_anything_else_are_refused(self):
        for name in ("Toy", "toy-op", "../toy", "1toy", "x" * 41):
            self.refused("name", "is no name", {**GOOD, "name": name})
        self.refused("name", "must be alike", {**GOOD, "name": "other"})
        self.refused("capability", 'must be "op.toy"', {**GOOD, "capability": "op.other"})
        self.refused("library", 'must be "ds_toy"', {**GOOD, "library": "toy"})

    def test_sources_stay_in_the_folder_and_exist(self):
        for source in ("/etc/passwd", "../toy.cpp", "toy.h", "a/../../toy.cpp"):
            self.refused("sources", "relative path inside the folder", {**GOOD, "sources": [source]})
        self.refused("sources", "is not in", {**GOOD, "sources": ["other.cpp"]})
        self.refused("sources", "is empty", {**GOOD, "sources": []})
        self.refused("devices", "is no device", {**GOOD, "devices": ["tpu"]})

    def test_the_ops_here_are_in_order(self):
        for file in sorted(KERNELS.glob("*/op.json")):
            script = self.dir / "one.cmake"
            script.write_text(f'cmake_minimum_required(VERSION 3.23)\ninclude("{KERNELS}/cmake/DsOp.cmake")\n_ds_read_op("{file}")\n')
            result = run(CMAKE, "-P", script)
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertTrue((file.parent / "README.md").is_file(), file)


class Configure(Temporary):
    def test_an_op_that_cannot_be_built_or_does_not_exist_costs_only_itself(self):
        mine = self.dir / "mine"
        write_op(mine, {**GOOD, "name": "good", "capability": "op.good", "library": "ds_good"})
        why = {"message": "it reads tea leaves", "remedy": "grow tea; wait"}
        needy = [
            ("no_header", {"headers": [{"name": "tea_leaves.h", **why}]}, "header tea_leaves.h"),
            ("no_library", {"libraries": [{"name": "tealeaves", "symbol": "tea", **why}]},
             "library tealeaves"),
            ("no_torch", {"torch": {"min": "99.0", **why}}, "torch"),
        ]
        for name, requirements, _ in needy:
            write_op(mine, {**GOOD, "name": name, "capability": f"op.{name}",
                            "library": f"ds_{name}", "requirements": requirements})
        write_op(mine, {**GOOD, "name": "gpu_only", "capability": "op.gpu_only",
                        "library": "ds_gpu_only", "devices": ["cuda"]})
        write_op(mine, {**GOOD, "name": "both", "capability": "op.both", "library": "ds_both",
                        "devices": ["cpu", "cuda"], "cuda_sources": ["both.cu"]})
        write_op(mine, {**GOOD, "name": "broken", "capability": "op.broken",
                        "library": "ds_broken"}, source='#error "broken on purpose"\n')
        names = ["good", "broken", "both", "gpu_only", "cpu_adm"] + [n for n, _, _ in needy]
        build = self.dir / "build"
        result = self.configure(build, f"-DDS_OPS_DIRS={mine}", f"-DDS_OPS={';'.join(names)}",
                                f"-DDS_TORCH_PREFIX={os.environ['DS_TORCH_ROOT']}")
        self.assertEqual(result.returncode, 0, result.stdout)
        rows = json.loads((build / "ops.json").read_text())
        self.assertEqual([row["op"] for row in rows], sorted(names))
        by_name = {row["op"]: row for row in rows}
        self.assertEqual(by_name["good"], {
            "op": "good", "state": "configured", "target": "ds_good",
            "library": "lib/libds_good.so", "reason": "", "help": "", "description": "A toy",
            "capability": "op.good", "devices": ["cpu"]})
        for name, _, what in needy:
            self.assertEqual(by_name[name]["state"], "unavailable")
            self.assertIn(what, by_name[name]["reason"])
            self.assertIn("it reads tea leaves", by_name[name]["reason"])
            self.assertEqual(by_name[name]["help"], "grow tea; wait")
        self.assertIn("DS_CUDA=ON", by_name["gpu_only"]["help"])
        # Of an op that has code for both, the build without CUDA makes that for the processor.
        self.assertEqual(by_name["both"], {
            "op": "both", "state": "configured", "target": "ds_both",
            "library": "lib/libds_both.so", "reason": "", "help": "", "description": "A toy",
            "capability": "op.both", "devices": ["cpu"]})
        self.assertEqual(by_name["cpu_adm"]["state"], "unavailable")
        self.assertIn("did you mean cpu_adam?", by_name["cpu_adm"]["help"])

        built = run("ninja", "-C", build, "-k", "0")
        self.assertNotEqual(built.returncode, 0)
        failed = [line for line in built.stdout.splitlines() if line.startswith("FAILED: ")]
        self.assertEqual(len(failed), 1, built.stdout)
        # Ninja 1.12 and later put "[code=1]" before the outputs.
        self.assertTrue(any("ds_broken" in word.split("/") for word in failed[0].split()), failed[0])
        stage = self.dir / "stage"
        run(CMAKE, "--install", build, "--prefix", stage, "--component", "op_good", check=True)
        self.assertEqual(files(stage), ["include/ds/good.h", "lib/libds_good.so",
                                        "ops/good/op.json"])
        both = self.dir / "both"
        run(CMAKE, "--install", build, "--prefix", both, "--component", "op_both", check=True)
        described = json.loads((both / "ops/both/op.json").read_text())
        self.assertEqual(described["devices"], ["cpu"])
        self.assertEqual(described["description"], "A toy")

    def test_code_for_devices_that_cannot_be_made_is_missed_where_it_is_wanted(self):
        mine = self.dir / "mine"
        needs = {"compute_capability": {"min": "9.0", "message": "it is new", "remedy": "be new"}}
        for name, requirements in (("both", {}), ("newer", needs)):
            write_op(mine, {**GOOD, "name": name, "capability": f"op.{name}",
                            "library": f"ds_{name}", "devices": ["cpu", "cuda"],
                            "cuda_sources": [f"{name}.cu"], "requirements": requirements})
        build = self.dir / "build"
        # As on a machine that has no nvcc.
        result = self.configure(build, f"-DDS_OPS_DIRS={mine}", "-DDS_OPS=both;newer",
                                "-DDS_CUDA=ON", "-DDS_NVCC=", env={**os.environ, "CUDACXX": ""})
        self.assertEqual(result.returncode, 0, result.stdout)
        for row in json.loads((build / "ops.json").read_text()):
            self.assertEqual((row["state"], row["devices"]), ("configured", ["cpu"]))
            self.assertIn("nvcc was not found", row["reason"])
            self.assertIn("CUDACXX", row["help"])


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


class Install(Temporary):
    def test_a_component_is_one_op_and_all_of_them_is_ops(self):
        ops = [row["op"] for row in json.loads((BUILD / "ops.json").read_text())
               if row["state"] == "configured"]
        everything, exported_before = [], set()
        for op in ops:
            stage = self.dir / op
            run(CMAKE, "--install", BUILD, "--prefix", stage, "--component", f"op_{op}", check=True)
            own = sorted([f"include/ds/{op}.h", f"lib/libds_{op}.so", f"ops/{op}/op.json"])
            self.assertEqual(files(stage), own)
            everything += own
            library = stage / "lib" / f"libds_{op}.so"
            dynamic = run("readelf", "-d", library).stdout
            self.assertNotIn("PATH)", dynamic, "a run path of the build machine")
            sections = run("readelf", "-S", library).stdout
            self.assertNotIn(".symtab", sections)
            exported = run("nm", "-DC", "--defined-only", library).stdout.splitlines()
            names = sorted(line.split(" ", 2)[2] for line in exported)
            # What its header shows, and nothing else of it.
            header = (KERNELS / op / f"{op}.h").read_text()
            shown = set(re.findall(r"DS_EXPORT [\w:]+ (\w+)\(", header))
            shown |= set(re.findall(r"(?:class|struct) DS_EXPORT (\w+)", header))
            for name in names:
                plain = re.match(r"(?:ds::)?(\w+)", name).group(1)
                self.assertTrue(name == f"ds_self_test_{op}" or name.startswith(f"ds::{op}_") or
                                plain in shown, name)
            self.assertFalse(exported_before & set(names), "two ops have one name")
            exported_before |= set(names)
            self.assertIn(f"ds_self_test_{op}", names)
        stage = self.dir / "common"
        run(CMAKE, "--install", BUILD, "--prefix", stage, "--component", "ops_common", check=True)
        modules = sorted(f"python/{path}" for path in files(KERNELS / "python")
                         if path.endswith(".py"))
        self.assertIn("python/ds_ops/deepspeed/__init__.py", modules)
        headers = [f"include/ds/{path}" for path in (
            "accelerator.h", "accelerators/cpu.h", "accelerators/cuda.h", "all_accelerators.h",
            "capabilities.h", "capability_names.h", "ds_op.h", "ds_types.h")]
        common = headers + modules
        self.assertEqual(files(stage), common)
        stage = self.dir / "all"
        run(CMAKE, "--install", BUILD, "--prefix", stage, "--component", "ops", check=True)
        self.assertEqual(files(stage), sorted(everything + common))

        # A program asks the release what works here, by the headers that it brought.
        source = self.dir / "ask.cpp"
        source.write_text("#include <ds/capabilities.h>\n#include <cstdio>\n"
                          "int main() {\n"
                          "  for (const auto& key : ds::capabilities()) std::puts(key.c_str());\n"
                          "  return ds::supports(ds::capability::kCpuAdam) ? 0 : 1;\n}\n")
        made = run(os.environ["DS_CXX"], "-std=c++17", "-Wall", "-Wextra", "-Werror",
                   *os.environ["DS_CXX_FLAGS"].split(), f"-I{stage / 'include'}", source, "-ldl",
                   "-pthread", f"-Wl,--disable-new-dtags,-rpath,{os.environ['DS_TORCH_LIB_DIR']}",
                   "-o", self.dir / "ask")
        self.assertEqual(made.returncode, 0, made.stdout)
        asked = run("env", f"DS_OPS_PREFIX={stage}", self.dir / "ask")
        self.assertEqual(asked.stdout.split(), [f"op.{op}" for op in sorted(ops)], asked.stdout)

        # The Python package finds them all, and says which one is missing.
        code = f"import sys; sys.path.insert(0, {str(stage / 'python')!r}); import ds_ops; " \
               "print(ds_ops.capabilities())"
        loaded = run(sys.executable, "-c", code)
        self.assertEqual(loaded.stdout.strip(), str([f"op.{op}" for op in sorted(ops)]))
        os.remove(stage / "lib" / f"libds_{ops[0]}.so")
        broken = run(sys.executable, "-c", code)
        self.assertNotEqual(broken.returncode, 0)
        self.assertIn(f"the op {ops[0]} is described", broken.stdout)
        self.assertIn("is missing", broken.stdout)

        # The examples, against what is installed.
        run(CMAKE, "--install", BUILD, "--prefix", stage, "--component", "ops", check=True)
        examples = KERNELS.parent / "examples"
        python = run(sys.executable, examples / "python" / "train_step.py", "--prefix", stage)
        self.assertEqual(python.returncode, 0, python.stdout)
        self.assertIn("agrees with torch.optim.AdamW", python.stdout)
        build = self.dir / "example"
        made = run(CMAKE, "-G", "Ninja", "-S", examples / "cpp", "-B", build,
                   f"-DCMAKE_CXX_COMPILER={os.environ['DS_CXX']}",
                   f"-DCMAKE_CXX_FLAGS={os.environ['DS_CXX_FLAGS']}",
                   f"-DDS_OPS_PREFIX={stage}", f"-DDS_TORCH_PREFIX={os.environ['DS_TORCH_ROOT']}")
        self.assertEqual(made.returncode, 0, made.stdout)
        made = run("ninja", "-C", build)
        self.assertEqual(made.returncode, 0, made.stdout)
        cpp = run(build / "train_step")
        self.assertEqual(cpp.returncode, 0, cpp.stdout)
        self.assertIn("loss", cpp.stdout)


class Reproducible(Temporary):
    def test_the_same_sources_give_the_same_bytes_in_another_folder(self):
        if "-fsanitize" in os.environ["DS_CXX_FLAGS"] or BUILD != OPS_BINARY_DIR:
            self.skipTest("needs a plain build of kernels/ alone")
        op = "cpu_lion"
        copy = self.dir / "quite" / "another folder" / "k"
        shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__", "build"))
        build = self.dir / "b"
        result = self.configure(build, f"-DDS_OPS={op}",
                                f"-DDS_TORCH_PREFIX={os.environ['DS_TORCH_ROOT']}", source=copy)
        self.assertEqual(result.returncode, 0, result.stdout)
        result = run("ninja", "-C", build)
        self.assertEqual(result.returncode, 0, result.stdout)
        libraries = []
        for tree, stage in ((BUILD, self.dir / "s1"), (build, self.dir / "longer" / "stage2")):
            run(CMAKE, "--install", tree, "--prefix", stage, "--component", f"op_{op}", check=True)
            libraries.append((stage / "lib" / f"libds_{op}.so").read_bytes())
        self.assertEqual(*libraries)
        self.assertNotIn(str(self.dir).encode(), libraries[1])


if __name__ == "__main__":
    unittest.main()
