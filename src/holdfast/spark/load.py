"""Finds a pipeline by what a user types: a bundled name, `module:object`, or a `.py` file."""

from __future__ import annotations

import difflib
import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from holdfast.errors import HoldfastError, UsageInvalid
from holdfast.pipeline import Pipeline

BUNDLED = {"coffee": "holdfast.apps.coffee.pipeline:pipe"}
_NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"
"""What PySpark says of, for instance, `udf(f, "int")` where there is no session."""
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_REMEDY = "Give a bundled name (coffee), module:object, or a .py file."


def load_pipeline(reference: str) -> Pipeline:
    """Return the pipeline that `reference` names.

    Raises:
        UsageInvalid: there is none, or its file cannot be loaded; the user's line is named.
        PipelineInvalid: it is there and defined wrongly.
    """
    target = BUNDLED.get(reference, reference)
    place, _, name = target.partition(":")
    if place.endswith(".py"):
        module = _import_file(Path(place))
    elif ":" in target:
        # As `python -m` does; last, so that it hides nothing.
        sys.path.append(str(Path.cwd()))
        module = _import(place)
    else:
        near = difflib.get_close_matches(reference, BUNDLED, n=1)
        hint = f"Did you mean {near[0]}?" if near else _REMEDY
        raise UsageInvalid(what=f"there is no pipeline {reference!r}", remedy=hint)
    return _find(module, name, reference)


def search_path(reference: str) -> str | None:
    """Return the directory that Python workers must know to load what a pipeline file defines."""
    place = reference.partition(":")[0]
    return str(Path(place).absolute().parent) if place.endswith(".py") else None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageInvalid(what=f"there is no pipeline file {path}", remedy=_REMEDY)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) != str(path.absolute()):
        what = f"{path} has the name of a module that is loaded already"
        raise UsageInvalid(what=what, remedy="Rename it.")
    # The directory goes on the path, so that Spark's Python workers can import the same module.
    directory = str(path.absolute().parent)
    if sys.path[0] != directory:
        sys.path.insert(0, directory)
    module = _import(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path.resolve():
        what = f"{path} was not loaded: {module.__file__} has the same name"
        raise UsageInvalid(what=what, remedy="Rename one of them.")
    return module


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except HoldfastError:
        raise
    except SyntaxError as error:
        what = f"{error.filename}:{error.lineno}: {error.msg}"
        raise UsageInvalid(what=what, remedy="Correct the pipeline file.") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or exit
        text = str(error).rstrip(".")
        what = f"{_users_line(error)}: {type(error).__name__}: {text}"
        remedy = "Correct it, or name another pipeline."
        if _NO_SESSION in text:
            remedy = "Do that inside a stage: the file is loaded before there is a session."
        raise UsageInvalid(what=what, remedy=remedy) from error


def _users_line(error: BaseException) -> str:
    """Return "file:line" of the innermost frame that is in no library, or else of the innermost."""
    frames = traceback.extract_tb(error.__traceback__)
    libraries = ("<frozen", str(Path(__file__).parent), *map(sysconfig.get_path, _LIBRARIES))
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _find(module: ModuleType, name: str, reference: str) -> Pipeline:
    if name:
        found = getattr(module, name, None)
        if isinstance(found, Pipeline):
            return found
        what = f"{reference}: {name} is not a Pipeline"
        raise UsageInvalid(what=what, remedy="Name the variable that holds it.")
    pipelines = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if len(pipelines) == 1:
        return next(iter(pipelines.values()))
    what = f"{reference} defines {len(pipelines)} pipelines"
    remedy = f"Name one: {reference}:{next(iter(pipelines), 'pipe')}."
    raise UsageInvalid(what=what, remedy=remedy)
