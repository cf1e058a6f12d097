"""Becomes the broker, after asking the kernel to end it with its parent: `child PARENT BINARY`.

Its settings are in the environment: nothing of them, secrets least of all, is on a command line.
"""

from __future__ import annotations

import os
import sys

from holdfast._base.processes import die_with


def main() -> None:
    """Replace this process by the broker; the pid stays."""
    parent, binary = sys.argv[1:]
    die_with(int(parent))
    os.execv(binary, [binary, "broker"])  # noqa: S606 - a binary that the user named, no shell


if __name__ == "__main__":
    main()
