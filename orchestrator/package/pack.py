#!/usr/bin/env python3
"""pack.py OUTPUT: the package ds_package beside this as one file that a Python can be given. The same
sources give the same bytes: their times and rights are left out, and nothing is compressed, as the
bundle is."""

import io
import os
import sys
import zipfile

PACKAGE = "ds_package"
MAIN = "import sys\n\nfrom ds_package.supervisor import main\n\nsys.exit(main())\n"
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def pack():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), PACKAGE)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", LONG_AGO), MAIN)
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    archive.writestr(zipfile.ZipInfo(PACKAGE + "/" + name, LONG_AGO), file.read())
    return b"#!/usr/bin/env python3\n" + packed.getvalue()


def main(output):
    with open(output, "wb") as file:
        file.write(pack())
    os.chmod(output, 0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
