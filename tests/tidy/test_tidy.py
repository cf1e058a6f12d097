"""The house rules as a test: layers, sizes, bans, names, crash points, errors."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from holdfast import errors
from holdfast._base.crashpoint import POINTS

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
HOUSE = SRC / "holdfast"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "_base", "config"),
    ("store", "blobs", "log", "amqp"),
    ("ledger", "intake", "delivery", "worker"),
    ("engine",),
    ("pipeline",),
    ("spark",),
    ("queries", "client"),
    ("apps",),
    ("gateway", "router", "cli", "dashboard", "testing", "pyspark_holdfast"),
)
"""Lowest first (docs/adr/0012). A part imports only from parts of lower layers."""
FREE_IN_LAYER = {("errors", "_base", "config")}
"""Written in one order in the design (errors, _base, config): each imports those before it."""
CONTRACTS = ("contract", "rows")
"""The modules of a part that others of its own layer may import."""
LATE_IMPORTS = {("pipeline", "spark"), ("log", "store"), ("cli", "gateway"), ("cli", "router")}
"""Permitted inside functions only: `Pipeline.run` and `.test` load Spark when they are called, the
embedded log opens its store when it is given a path (docs/adr/0012), and the verbs `gateway` and
`router` open their doors."""

FOREIGN: dict[str, tuple[str, ...]] = {
    "pyspark": ("spark",),
    "py4j": ("spark",),
    "apsw": ("_base", "store", "ledger"),
    "psycopg": ("ledger",),
    "httpx": ("client", "delivery"),
    "fastapi": ("gateway",),
    "starlette": ("gateway",),
    "uvicorn": ("gateway",),
    "httptools": ("gateway",),
    "pydantic": ("gateway",),
    "sqlite3": (),
    "confluent_kafka": ("log/kafka",),
    "aio_pika": ("amqp",),
    "aiormq": ("amqp",),
    "pickle": (),
    "cloudpickle": (),
    "marshal": (),
    "shelve": (),
    "dill": (),
    "yaml": (),
    "random": (),
    "uuid": (),
    "secrets": ("_base",),
    "time": ("_base",),
}
"""Module -> the only parts, or folders of one, that may import it."""
LATE_FOREIGN = {("apps", "pyspark"), ("testing", "pyspark")}
"""Inside functions only."""
CLOCK_EXCEPTIONS: dict[str, str] = {}
"""File -> why it may ask the machine for time or chance itself. Empty: nobody may."""
CHANCE_EXCEPTIONS = {
    "apps/coffee/draw.py": "a counter-based generator keyed by the seed: the same bytes each time",
}

LINES_MAX = 500
FUNCTION_LINES_MAX = 70
BANNED_WORDS = {
    *("utils", "util", "helpers", "helper", "common", "manager", "service", "handler", "v2"),
}
PUBLISHED_NAMES = {"PersistenceService"}


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def _inside(self) -> Path:
        return self.path.relative_to(HOUSE if self.path.is_relative_to(HOUSE) else SRC)

    @property
    def name(self) -> str:
        return str(self._inside)

    @property
    def part(self) -> str:
        return self._inside.parts[0].removesuffix(".py")


@dataclass(frozen=True)
class Import:
    """One imported module; `late` inside a function, `typing` under TYPE_CHECKING."""

    module: str
    line: int
    late: bool
    typing: bool


@cache
def modules() -> tuple[Module, ...]:
    paths = sorted(path for path in SRC.rglob("*.py"))
    assert len(paths) > 50
    texts = [(path, path.read_text(encoding="utf-8")) for path in paths]
    return tuple(Module(path, text, ast.parse(text)) for path, text in texts)


def imports_of(module: Module) -> Iterator[Import]:
    def walk(node: ast.AST, late: bool, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late, typing)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}:{node.lineno}: a relative import"
            base = node.module or ""
            yield Import(base, node.lineno, late, typing)
            if base == "holdfast" or base.count(".") == 1:
                for alias in node.names:
                    if (HOUSE.parent / base.replace(".", "/") / f"{alias.name}.py").exists():
                        yield Import(f"{base}.{alias.name}", node.lineno, late, typing)
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, late or is_function, typing or is_typing)

    yield from walk(module.tree, False, False)


def layer_of(part: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if part in layer)


def calls_of(module: Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def comments_of(module: Module) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def test_every_part_is_in_the_house() -> None:
    known = {part for layer in LAYERS for part in layer} | {"__init__"}
    assert {module.part for module in modules()} - known == set()


def is_allowed(module: Module, one: Import) -> bool:
    """Tell whether one import of our own obeys the order of the house."""
    if one.typing or one.module == "holdfast":
        return True
    target = one.module.split(".")[1]
    if target == module.part:
        return True
    mine, theirs = layer_of(module.part), layer_of(target)
    if theirs < mine:
        return True
    if one.late and (module.part, target) in LATE_IMPORTS:
        return True
    if theirs == mine:
        layer = LAYERS[mine]
        if layer in FREE_IN_LAYER:
            return True
        return [*one.module.split("."), ""][2] in CONTRACTS
    return False


def test_a_part_imports_only_from_parts_before_it() -> None:
    wrong = [
        f"{module.name}:{one.line}: {one.module}"
        for module in modules()
        if module.part != "__init__"
        for one in imports_of(module)
        if one.module.split(".")[0] == "holdfast" and not is_allowed(module, one)
    ]
    assert wrong == []


def test_within_the_lowest_layer_errors_know_nobody_and_base_knows_errors() -> None:
    wrong = [
        f"{module.name}:{one.line}: {one.module}"
        for module in modules()
        for one in imports_of(module)
        if (
            module.part == "errors"
            and one.module.startswith("holdfast")
            and not one.module.startswith("holdfast.errors")
        )
        or (module.part == "_base" and one.module.startswith("holdfast.config"))
    ]
    assert wrong == []


def test_the_public_surface_is_lazy() -> None:
    """`import holdfast` loads nothing of ours: names are loaded when they are asked for."""
    (init,) = [module for module in modules() if module.part == "__init__"]
    assert [
        one.module for one in imports_of(init) if "holdfast" in one.module and not one.typing
    ] == []


def test_the_application_uses_the_public_surface_only() -> None:
    wrong = [
        f"{module.name}:{one.line}: {one.module}"
        for module in modules()
        if module.part == "apps"
        for one in imports_of(module)
        if one.module.startswith("holdfast") and not one.typing
        if one.module != "holdfast" and not one.module.startswith("holdfast.apps")
    ]
    assert wrong == []


def is_within(module: Module, places: tuple[str, ...]) -> bool:
    """Tell whether a module is in one of these parts or folders."""
    return module.part in places or str(Path(module.name).parent) in places


def test_each_foreign_library_has_its_importer() -> None:
    wrong = []
    for module in modules():
        for one in imports_of(module):
            library = one.module.split(".")[0]
            if library not in FOREIGN or one.typing or is_within(module, FOREIGN[library]):
                continue
            if one.late and (module.part, library) in LATE_FOREIGN:
                continue
            if module.name not in CLOCK_EXCEPTIONS:
                wrong.append(f"{module.name}:{one.line}: {one.module}")
    assert wrong == []


def test_time_and_chance_come_from_base() -> None:
    """Also where no import shows it: datetime.now, np.random, os.urandom."""
    asked = re.compile(r"(datetime|date)\.(now|utcnow|today)$|\bos\.urandom$|\brandom\.|\.random\b")
    wrong = [
        f"{module.name}:{call.lineno}: {name}"
        for module in modules()
        for name, call in calls_of(module)
        if asked.search(name) and module.part != "_base"
        if module.name not in {**CLOCK_EXCEPTIONS, **CHANCE_EXCEPTIONS}
    ]
    assert wrong == []


def test_each_exception_is_still_needed() -> None:
    texts = {module.name: module.text for module in modules()}
    for name in {**CLOCK_EXCEPTIONS, **CHANCE_EXCEPTIONS}:
        assert re.search(r"random|time", texts[name]), f"{name} needs no exception any more"


def test_no_code_is_made_out_of_data() -> None:
    """No eval, exec or compile of text, and no way to load pickles through another library."""
    banned = ("eval", "exec", "compile", "__import__", "yaml.load", "np.load", "numpy.load")
    wrong = [
        f"{module.name}:{call.lineno}: {name}"
        for module in modules()
        for name, call in calls_of(module)
        if name in banned or name.endswith((".read_pickle", ".saveAsPickleFile", ".pickleFile"))
    ]
    assert wrong == []


def test_no_module_is_too_long() -> None:
    sizes = {module.name: len(module.text.splitlines()) for module in modules()}
    assert {name: size for name, size in sizes.items() if size > LINES_MAX} == {}


def test_no_function_is_too_long() -> None:
    sizes = {
        f"{module.name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: size for name, size in sizes.items() if size > FUNCTION_LINES_MAX} == {}


def crash_points_used() -> list[tuple[str, str]]:
    found = []
    for module in modules():
        for name, call in calls_of(module):
            if name.split(".")[-1] != "crashpoint":
                continue
            where = f"{module.name}:{call.lineno}"
            assert len(call.args) == 1, where
            assert isinstance(call.args[0], ast.Constant), f"{where}: not a literal"
            found.append((str(call.args[0].value), where))
    return found


def test_every_crash_point_is_declared_and_used_exactly_once() -> None:
    uses = Counter(name for name, _ in crash_points_used())
    assert {name: count for name, count in uses.items() if count > 1} == {}
    assert sorted(uses) == sorted(POINTS)


def test_crash_points_are_named_area_step_moment() -> None:
    assert [name for name in POINTS if not re.fullmatch(r"[a-z]+\.[a-z]+\.[a-z]+", name)] == []
    assert [name for name, text in POINTS.items() if not text.endswith(".")] == []


def test_crash_points_are_declared_once_in_the_source() -> None:
    """A dict literal would keep the last of two equal keys and say nothing."""
    (module,) = [module for module in modules() if module.name == "_base/crashpoint.py"]
    for name in POINTS:
        assert module.text.count(f'"{name}":') == 1


def test_names_say_what_things_are() -> None:
    wrong = []
    for module in modules():
        stem = module.path.stem.lower()
        names = [(stem, 0)] + [
            (node.name, node.lineno)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef) and node.name not in PUBLISHED_NAMES
        ]
        for name, number in names:
            if _words(name) & BANNED_WORDS or name.startswith("new_"):
                wrong.append(f"{module.name}:{number}: {name}")
    assert wrong == []


def _words(name: str) -> set[str]:
    """Split a module's or a class's name into lower-case words."""
    return {part.lower() for part in re.findall(r"V\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*", name)}


def test_words_are_told_apart() -> None:
    assert _words("QueueHandlerV2") == {"queue", "handler", "v2"}
    assert _words("date_utils") == {"date", "utils"}
    assert _words("CSVReader") == {"csv", "reader"}


def test_all_text_is_ascii() -> None:
    folders = [SRC, ROOT / "tests", ROOT / "docs", ROOT / "examples", ROOT / "bench"]
    paths = [path for folder in folders for path in folder.rglob("*")]
    paths += [
        path
        for path in ROOT.iterdir()
        if path.suffix in (".md", ".toml") or path.name == "Makefile"
    ]
    wrong = []
    for path in sorted(paths):
        if path.suffix in (".py", ".md", ".toml", ".properties", ".txt") or path.name == "Makefile":
            data = path.read_bytes()
            if not data.isascii():
                line = 1 + data[: next(n for n, b in enumerate(data) if b > 127)].count(b"\n")
                wrong.append(f"{path.relative_to(ROOT)}:{line}")
    assert wrong == []


def test_a_broad_except_says_why_on_its_line() -> None:
    wrong = []
    for module in modules():
        comments = comments_of(module)
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = "" if node.type is None else ast.unparse(node.type)
            broad = caught == "" or re.search(r"\b(Exception|BaseException)\b", caught)
            reason = re.sub(r"#\s*(noqa[^-]*)?", "", comments.get(node.lineno, "")).strip(" -")
            if broad and len(reason.split()) < 3:
                wrong.append(f"{module.name}:{node.lineno}: except {caught}")
    assert wrong == []


def test_an_ignore_names_its_code() -> None:
    wrong = [
        f"{module.name}:{number}: {text}"
        for module in modules()
        for number, text in comments_of(module).items()
        if re.search(r"noqa(?!: ?[A-Z]+\d)", text) or re.search(r"type: ?ignore(?!\[)", text)
    ]
    assert wrong == []


def test_no_marker_is_left_behind() -> None:
    marker = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    paths = [*(module.path for module in modules()), *(ROOT / "tests").rglob("*.py")]
    paths += [*(ROOT / "docs").rglob("*.md")]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marker.search(line)
    ]
    assert wrong == []


def test_every_module_says_what_it_owns() -> None:
    assert [module.name for module in modules() if not ast.get_docstring(module.tree)] == []


def test_every_error_has_a_docstring_of_its_own_and_a_unique_code() -> None:
    parts = [module for module in modules() if module.part == "errors"]
    classes = [n for module in parts for n in module.tree.body if isinstance(n, ast.ClassDef)]
    assert [node.name for node in classes if not ast.get_docstring(node)] == []
    text = "\n".join(module.text for module in parts)
    codes = Counter(re.findall(r'^    code: ClassVar\[str\] = "(\w+)"$', text, re.MULTILINE))
    assert {code: count for code, count in codes.items() if count > 1} == {}
    assert set(codes) == {*errors.all_errors(), "HOLDFAST"}


def test_every_error_is_in_the_tree_that_the_module_draws() -> None:
    drawn = errors.__doc__ or ""
    for code, cls in errors.all_errors().items():
        assert re.search(rf"\+-- {cls.__name__} +{code}\b", drawn), code


def test_every_error_names_all_its_attributes_in_its_message() -> None:
    for cls in errors.all_errors().values():
        for field in fields(cls):
            assert f"{{{field.name}}}" in cls.template, f"{cls.__name__}.{field.name}"
