"""The README's service, copied out of it and run as a newcomer would, on a free port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.service.parts import free_port

from holdfast.apps.coffee.oracle import answers, write_answers

QUICK_S = 300.0
"""In which a newcomer has the first answers, once the packages are there."""
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(400)
def test_the_service_of_the_readme_runs_as_written(tmp_path: Path) -> None:
    """In five minutes: its answers are the oracle's, nothing is left behind, and no output shows
    the token.
    """
    text = README.read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (script,) = [block for block in blocks if "holdfast up" in block]
    assert "8080" in script
    begun_s = time.monotonic()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"set -m\n{script.replace('8080', str(free_port()))}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    took_s = time.monotonic() - begun_s
    assert done.returncode == 0, done.stdout + done.stderr
    assert took_s < QUICK_S
    write_answers(answers(scale=0.01, seed=1), tmp_path / "right")
    for path in (tmp_path / "right").iterdir():
        assert (tmp_path / "coffee-answers" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "token").read_text().strip() not in done.stdout + done.stderr
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert "Traceback" not in done.stderr
    assert "service works here now, 3 processes" in done.stdout
