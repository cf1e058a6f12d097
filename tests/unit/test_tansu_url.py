"""What a tansu URL says, what the broker is told, and what its output means. No broker is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import DependencyMissing, UsageInvalid
from holdfast.log.tansu.settings import environment_of, find_binary, read_settings
from holdfast.log.tansu.trouble import diagnose


def test_urls_of_all_storages() -> None:
    memory = read_settings("tansu+memory://shop")
    assert (memory.prefix, memory.storage, memory.startup_timeout_s) == (
        *("shop", "memory://holdfast/"),
        10.0,
    )
    file = read_settings("tansu+sqlite:///var/lib/t%20x.db?prefix=p&port=9092&timeout_s=5")
    assert (file.place, file.storage, file.port) == ("/var/lib/t x.db", "sqlite://t x.db", 9092)
    assert (file.prefix, file.timeout_s) == ("p", 5.0)
    s3 = read_settings("tansu+s3://topics?s3_endpoint=http://h:1&s3_region=r&startup_timeout_s=90")
    assert (s3.storage, s3.s3_endpoint, s3.s3_region) == ("s3://topics/", "http://h:1", "r")
    assert s3.startup_timeout_s == 90.0
    assert read_settings("tansu+s3://topics").startup_timeout_s == 60.0


def test_it_listens_and_is_reached_where_it_is_told() -> None:
    at_home = read_settings("tansu+memory://p")
    assert at_home.client(9).servers == "127.0.0.1:9"
    shown = read_settings("tansu+memory://p?host=192.0.2.7")
    assert shown.client(9).url.startswith("kafka://192.0.2.7:9/p")
    told = environment_of(shown, 9, {})
    assert {told["LISTENER_URL"], told["ADVERTISED_LISTENER_URL"]} == {"tcp://192.0.2.7:9"}


@pytest.mark.parametrize(
    "url",
    [
        "tansu+redis://x",
        "tansu+memory://",
        "tansu+memory://a_b",
        "tansu+sqlite://file.db",
        "tansu+sqlite:///",
        "tansu+s3://",
        "tansu+s3://Bucket",
        "tansu+s3://b/path",
        "tansu+s3://key:canary-577@bucket",
        "tansu+memory://p?secret_key=canary-577",
        "tansu+memory://p?port=none",
        "tansu+memory://p?port=70000",
        "tansu+memory://p?port=80.5",
        "tansu+memory://p?host=",
        "tansu+memory://p?host=0.0.0.0",
        "tansu+memory://p?host=me@there",
    ],
)
def test_what_says_nothing_is_refused(url: str) -> None:
    with pytest.raises(UsageInvalid) as caught:
        read_settings(url)
    assert "canary" not in str(caught.value)


def test_keys_go_by_the_environment_only(tmp_path: Path) -> None:
    secrets = tmp_path / "keys"
    secrets.write_text("access_key = me\nsecret_key=canary=577\n")
    settings = read_settings("tansu+s3://topics?s3_endpoint=http://h:1")
    found = environment_of(settings, 9, {"HOLDFAST_S3_SECRETS": str(secrets)})
    assert found["AWS_ACCESS_KEY_ID"] == "me"
    assert found["AWS_SECRET_ACCESS_KEY"] == "canary=577"
    assert (found["AWS_ENDPOINT"], found["AWS_ALLOW_HTTP"]) == ("http://h:1", "true")
    assert found["LISTENER_URL"] == "tcp://127.0.0.1:9"
    assert "canary" not in repr(settings)
    tls = read_settings("tansu+s3://topics?s3_endpoint=https://h")
    assert "AWS_ALLOW_HTTP" not in environment_of(tls, 9, {})


def test_a_binary_is_found_by_either_name(tmp_path: Path) -> None:
    other = tmp_path / "holdfast" / "tansu" / "0.6.0" / "bin"
    other.mkdir(parents=True)
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(DependencyMissing):
        find_binary(environment)
    built = other / "tansu"
    built.write_text("")
    with pytest.raises(DependencyMissing):
        find_binary(environment)  # it cannot be run
    built.chmod(0o755)
    assert find_binary(environment) == str(built)
    near = tmp_path / "nisshi"
    near.write_text("")
    near.chmod(0o755)
    assert find_binary(environment) == str(near)
    with pytest.raises(DependencyMissing):
        find_binary({**environment, "HOLDFAST_TANSU": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("output", "word"),
    [
        ('Server(Storage(FeatureNotEnabled { feature: "libsql", message: "x" }))', "libsql"),
        ('status: 404, body: Some("<Code>NoSuchBucket</Code>")', "bucket"),
        ('status: 403, body: Some("<Code>SignatureDoesNotMatch</Code>")', "refuses"),
        ("kind: Connect, source: dns error", "endpoint"),
        ("LibSql(ConnectionFailed(Unable to open connection to local database x: 14))", "file"),
        ("Os { code: 98, kind: AddrInUse }", "port"),
        ("Os { code: 99, kind: AddrNotAvailable }", "no address of this machine"),
        ("\x1b[31mERROR\x1b[0m something else", "something else"),
        ("ready in 4 ms", "in time"),
    ],
)
def test_output_says_why(output: str, word: str) -> None:
    """The texts are those of Tansu 0.6.0."""
    found = diagnose(output, "/there")
    assert word in found.what
    assert found.output == "/there"
    assert "\x1b" not in str(found)
