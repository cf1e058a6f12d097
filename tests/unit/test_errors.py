"""Every error crosses processes and text, is explained, and has a code of its own."""

import dataclasses
import importlib
import inspect
import pickle
import re
import typing

import pytest

from holdfast import errors
from holdfast.errors import Blame, HoldfastError, all_errors, from_text

ERRORS = sorted(all_errors().values(), key=lambda kind: kind.code)
IDS = [kind.code for kind in ERRORS]
SAMPLES = {"str": 'a "text"\nof \u00e9 {two} lines', "int": 7, "float": 1.5, "bool": True}


def sample(kind: type[HoldfastError]) -> HoldfastError:
    hints = typing.get_type_hints(kind)
    facts = {}
    for field in dataclasses.fields(kind):
        name = getattr(hints[field.name], "__name__", str(hints[field.name]))
        facts[field.name] = SAMPLES[name] if name in SAMPLES else SAMPLES["str"]
    return kind(**facts)


@pytest.mark.parametrize("kind", ERRORS, ids=IDS)
def test_it_crosses_processes(kind: type[HoldfastError]) -> None:
    error = sample(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.facts() == error.facts()
    assert str(again) == str(error)


@pytest.mark.parametrize("kind", ERRORS, ids=IDS)
def test_it_crosses_text(kind: type[HoldfastError]) -> None:
    """As in the traceback of a Spark worker: in the middle of other lines."""
    error = sample(kind)
    assert "\n" not in error.wire_text()
    again = from_text(f"Traceback:\n  File\nExc: {error.wire_text()}\n\tat org.apache.spark")
    assert type(again) is kind
    assert again.facts() == error.facts()


@pytest.mark.parametrize("kind", ERRORS, ids=IDS)
def test_it_is_explained(kind: type[HoldfastError]) -> None:
    """It has its own docstring and code; the message has the code and every value."""
    assert "__doc__" in vars(kind)
    assert inspect.getdoc(kind)
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", kind.code)
    assert isinstance(kind.blame, Blame)
    assert str(sample(kind)).startswith(f"[{kind.code}] ")
    for field in dataclasses.fields(kind):
        assert f"{{{field.name}}}" in kind.template, f"the message does not say {field.name}"


def test_codes_are_unique_and_drawn_in_the_tree() -> None:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, HoldfastError) and "code" in vars(kind) and kind is not HoldfastError
    ]
    codes = [kind.code for kind in kinds]
    assert sorted(codes) == sorted(set(codes)) == IDS
    tree = importlib.import_module("holdfast.errors").__doc__ or ""
    for kind in kinds:
        assert re.search(rf"\b{kind.__name__}\b.*\b{kind.code}\b", tree), (
            f"{kind.code} is not drawn"
        )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing here",
        "HOLDFAST_ERROR ",
        "HOLDFAST_ERROR {",
        "HOLDFAST_ERROR []",
        'HOLDFAST_ERROR {"code": "NO_SUCH", "facts": {}}',
        'HOLDFAST_ERROR {"code": "DISK_FULL", "facts": {"wrong": 1}}',
        'HOLDFAST_ERROR {"code": "DISK_FULL"}',
    ],
)
def test_text_without_an_error_gives_none(text: str) -> None:
    assert from_text(text) is None
