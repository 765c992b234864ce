"""Payloads: bundles with one op of a given size, and files as other tools would copy them.

The ops need no torch and their self-test does nothing, so that what is measured is the transfer.
"""

import json
import os
import pathlib
import shutil
import subprocess

HEADER = "#pragma once\n\n// Only for measuring.\n"
SELF_TEST = """
extern "C" __attribute__((visibility("default"))) int ds_self_test_{name}(const char*, char* detail,
                                                                         unsigned long size) {{
  if (size > 0) detail[0] = '\\0';
  return {result};
}}
"""
# 16 bytes at a label that the self-test reads, so that no linker may drop them.
BLOB = """
asm(".section .rodata\\n.balign 16\\n.global ds_blob_{name}\\nds_blob_{name}:\\n.incbin \\"{file}\\"\\n"
    ".previous\\n");
extern "C" const char ds_blob_{name}[];
"""
# Code as compilers make it, a few KiB for each type: what a patch to a rebuilt library has to face.
CODE = """
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>
namespace {{
template <int N>
int work(int seed) {{
  std::map<std::array<short, N>, std::string> seen;
  std::vector<std::array<short, N>> rows(16);
  for (auto& row : rows) {{
    for (auto& x : row) x = static_cast<short>(seed = seed * 1103515245 + 12345);
    seen[row] = std::to_string(seed);
  }}
  std::sort(rows.begin(), rows.end());
  std::stable_sort(rows.begin(), rows.end(), [](auto& a, auto& b) {{ return a[N / 2] < b[N / 2]; }});
  return rows[0][0] + static_cast<int>(seen.begin()->second.size());
}}
int all(int seed) {{
  int sum = 0;
{calls}
  return sum;
}}
}}  // namespace
"""


class Workshop:
    """Builds bundles with ds-install in a folder of its own, with a cache of its own."""

    def __init__(self, folder, program, environment):
        self.folder = pathlib.Path(folder)
        self.program = program
        self.environment = environment

    def _build(self, name, text, blob=None, mark=""):
        ops = self.folder / f"ops-{name}{mark}"
        op = ops / name
        op.mkdir(parents=True)
        if blob is not None:
            (op / "blob").write_bytes(blob)
        (op / f"{name}.h").write_text(HEADER)
        (op / f"{name}.cpp").write_text(text.replace("@HERE@", str(op)))
        (op / "op.json").write_text(json.dumps({
            "name": name, "description": "A payload", "capability": f"op.{name}", "devices": ["cpu"],
            "sources": [f"{name}.cpp"], "library": f"ds_{name}"}))
        bundle = self.folder / f"{name}{mark}.tar.zst"
        done = subprocess.run([self.program, "build", "-r", "--ops-dir", ops, "--ops", name, "-o", bundle],
                              capture_output=True, text=True, env=self.environment, cwd=self.folder)
        if done.returncode != 0:
            raise RuntimeError(f"the payload cannot be built: {done.stdout}{done.stderr}")
        content = self.folder / f"content-{name}{mark}"
        content.mkdir()
        subprocess.run(["tar", "--zstd", "-xf", bundle, "-C", content], check=True)
        shutil.rmtree(ops)
        return Payload(name, bundle, next(content.rglob(f"libds_{name}.so")))

    def blob(self, name, size):
        """`size` bytes that no compression and no earlier run can help with."""
        result = f"ds_blob_{name}[size % 16] == 0 && size > (1ul << 40) ? 1 : 0"
        text = BLOB.format(name=name, file="@HERE@/blob") + SELF_TEST.format(name=name, result=result)
        return self._build(name, text, blob=os.urandom(max(size, 16)))

    def code(self, name, types, line):
        """A library of compiled code; another `line` is a change of one line in its middle."""
        calls = [f"  sum += work<{n}>(seed + {n});" for n in range(3, types + 3)]
        calls[types // 2] += f"\n  {line}"
        text = CODE.format(calls="\n".join(calls)) + SELF_TEST.format(
            name=name, result="size > (1ul << 40) ? all(static_cast<int>(size)) : 0")
        return self._build(name, text, mark=f"-{len(line)}")


class Payload:
    """A bundle, and the file in it that is worth copying."""

    def __init__(self, name, bundle, library):
        self.name, self.bundle, self.library = name, bundle, library
        self.size = library.stat().st_size
