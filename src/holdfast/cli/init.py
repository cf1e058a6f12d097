"""`holdfast init`: a project that runs, passes its test and survives a kill as it is made."""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from pathlib import Path

from holdfast._base.files import os_errors
from holdfast.errors import UsageInvalid

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
"""What a pipeline may be called: the project has its name."""

FILES = {
    "README.md": "README.md.txt",
    "pipeline.py": "pipeline.py.txt",
    "test_pipeline.py": "test_pipeline.py.txt",
    "holdfast.toml": "holdfast.toml.txt",
    ".gitignore": "gitignore.txt",
    "data/shops.csv": "data/shops.csv",
    **{f"data/sales_2026-{n:02d}.csv": f"data/sales_2026-{n:02d}.csv" for n in range(1, 6)},
}
"""What is made, and its template. Templates of code end in .txt: they are no modules of ours."""


def init_command(name: str, *, as_json: bool) -> None:
    """Make a project in a new directory of the working directory, and say how to go on."""
    if not _NAME.fullmatch(name):
        remedy = "Use letters, digits and _, a letter first, 63 at most: it names the pipeline too."
        raise UsageInvalid(what=f"{name!r} is no name for a project", remedy=remedy)
    root = Path(name)
    with os_errors(root):
        if root.is_file() or (root.is_dir() and any(root.iterdir())):
            remedy = "Nothing was written; choose another name, or remove it."
            raise UsageInvalid(what=f"{name} is there and not empty", remedy=remedy)
        make_project(root, name)
    if as_json:
        facts = {"project": name, "directory": str(root.absolute()), "files": list(FILES)}
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    for path in FILES:
        sys.stdout.write(f"  {name}/{path}\n")
    run = "holdfast run pipeline.py --input data --out answers --state state"
    sys.stdout.write(f"made the project {name}; its README.md says more\n")
    sys.stdout.write(f"next: cd {name} && {run}\n")


def make_project(root: Path, name: str) -> None:
    """Write every file of a project."""
    templates = files("holdfast.cli") / "templates"
    for path, template in FILES.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        text = templates.joinpath(template).read_text(encoding="ascii")
        target.write_text(text.replace("{name}", name), encoding="ascii")
