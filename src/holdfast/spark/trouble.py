"""What Spark raised, said as one of our errors: what happened, at which line of the user's.

Python workers hand over only the text of a traceback, so the user's line is found in that text;
frames of Spark, of the libraries it uses, and of Holdfast are passed over.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException, PythonException

import holdfast
from holdfast.errors import (
    DiskFull,
    HoldfastError,
    SparkLost,
    StageFailed,
    StageInvalid,
    from_text,
)

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LAST_LINE = re.compile(
    r"^(\w[\w.]*(?:Error|Exception|Warning|Interrupt|Exit)?: .*|\w[\w.]*Error)$"
)
_JAVA_CAUSE = re.compile(r"^(?:Caused by)?: (?:\w+\.)*(\w+: .*)$", re.MULTILINE)
_OURS = (
    str(Path(pyspark.__file__).parent),
    str(Path(holdfast.__file__).parent / "spark"),
    "pyspark.zip",
    "site-packages/py4j",
    "site-packages/pyarrow",
    "<frozen",
)
_PASSING = ("PYTHON_DATA_SOURCE_ERROR",)
"""Conditions that Spark raises as errors of analysis, and that another attempt may not meet."""
_FULL = ("No space left on device", "Disk quota exceeded")
_LOST = (
    "Answer from Java side is empty",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "stopped SparkContext",
    "Connection refused",
    "StatusCode.UNAVAILABLE",
)


@contextmanager
def building(name: str) -> Iterator[None]:
    """Translate what is raised while a user's function builds its frame: it will raise again."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # a user's function may raise anything
        if passing := _full(error, "") or _lost(error):
            raise passing from error
        where = _user_frame(traceback.format_exception(error)) or "its definition"
        raise StageInvalid(stage=name, where=where, error=_short(error)) from error


@contextmanager
def working(name: str, writing: str = "") -> Iterator[None]:
    """Translate what a Spark job raised; `writing` is the directory it writes to."""
    try:
        yield
    except HoldfastError:
        raise
    except (AnalysisException, ParseException) as error:
        if error.getCondition() in _PASSING:
            raise translate(name, error, writing) from error
        raise StageInvalid(stage=name, where="its result", error=_short(error)) from error
    except (PySparkException, Py4JError, ConnectionError, OSError, EOFError) as error:
        raise translate(name, error, writing) from error


def translate(name: str, error: BaseException, writing: str = "") -> HoldfastError:
    """Return our error for what a Spark job raised."""
    text = str(error)
    if found := from_text(text):
        return found
    if passing := _full(error, writing) or _lost(error):
        return passing
    where = _user_frame(text.splitlines()) or "the Spark job"
    return StageFailed(stage=name, where=where, error=_short(error))


def _full(error: BaseException, writing: str) -> DiskFull | None:
    text = str(error)
    if not any(mark in text for mark in _FULL):
        return None
    if isinstance(error, PythonException) and (where := _user_frame(text.splitlines())):
        return DiskFull(path=f"what {where} writes")
    # Java names no file; what a job writes for itself alone goes elsewhere.
    own = "temporary files of Spark's (spark.local.dir)"
    return DiskFull(path=f"{writing} or {own}" if writing else own)


def _lost(error: BaseException) -> SparkLost | None:
    text = str(error)
    # Without an exception of Java's behind it, a Py4JError says that the JVM gave no answer.
    silent = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    broken = isinstance(error, (ConnectionError, EOFError))
    # What a user's own code met in a worker says nothing of the session.
    said = not isinstance(error, PythonException) and any(mark in text for mark in _LOST)
    if silent or broken or said:
        return SparkLost(error=text.strip().splitlines()[0] if text.strip() else "no answer")
    return None


def _user_frame(lines: list[str]) -> str | None:
    """Return "file:line" of the innermost frame that belongs to the user."""
    found = None
    for line in lines:
        match = _FRAME.search(line)
        if match and not any(part in match.group(1) for part in _OURS):
            found = f"{_shown(Path(match.group(1)))}:{match.group(2)}"
    return found


def _shown(path: Path) -> str:
    """Return a file as clients of a server may read it: from here on, or just its name."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def _short(error: BaseException) -> str:
    """Return the one line of an error that speaks to the user, without its full stop."""
    text = str(error).strip()
    found = text.splitlines()[0] if text else type(error).__name__
    if isinstance(error, PythonException) or "Traceback (most recent call last)" in text:
        said = (line.strip() for line in reversed(text.splitlines()))
        found = next((line for line in said if _LAST_LINE.match(line)), found)
    elif isinstance(error, Py4JJavaError):
        # Its first line names a call of ours. The last cause is the one that came first.
        causes = _JAVA_CAUSE.findall(text)
        found = causes[-1] if causes else found
    elif not isinstance(error, PySparkException):
        found = f"{type(error).__name__}: {found}"
    return found.rstrip(".")
