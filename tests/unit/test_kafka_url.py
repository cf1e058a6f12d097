"""What a kafka:// URL says, and what topics are called on a broker. No broker is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, UsageInvalid
from holdfast.log.kafka.names import NAME_MAX, group_name, group_prefix, mark_name, topic_name
from holdfast.log.kafka.settings import read_settings

LEGAL = re.compile(r"[A-Za-z0-9._-]+")
TEXTS = st.text(max_size=40) | st.text(alphabet="ab_.-/~2f", max_size=12)
PREFIXES = st.sampled_from(["a", "a-2f", "b"])


@given(PREFIXES, TEXTS, PREFIXES, TEXTS)
def test_two_topics_never_share_a_name(p1: str, t1: str, p2: str, t2: str) -> None:
    """Kafka also takes a.b and a_b for the same."""
    one, two = topic_name(p1, t1), topic_name(p2, t2)
    assert (one.replace(".", "_") == two.replace(".", "_")) == ((p1, t1) == (p2, t2))


@given(st.text(max_size=400))
def test_every_name_is_legal(topic: str) -> None:
    name = topic_name("p", topic)
    assert LEGAL.fullmatch(name)
    assert len(name) <= NAME_MAX


def test_long_names_stay_apart() -> None:
    names = {topic_name("p", "x" * 300 + end) for end in ("", "a", "b")}
    assert len(names) == 3


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_two_groups_never_share_a_name(t1: str, g1: str, t2: str, g2: str) -> None:
    one, two = topic_name("p", t1), topic_name("p", t2)
    assert (group_name(one, g1) == group_name(two, g2)) == ((t1, g1) == (t2, g2))
    assert group_name(one, g1).startswith(group_prefix(one))
    assert group_name(two, g2).startswith(group_prefix(one)) == (t1 == t2)
    assert group_name(one, g1) != mark_name(two)


def test_a_url_is_read_and_written_again() -> None:
    url = "kafka://one:9092,two:9093/shop?replicas=3&flush=broker&truncate=mark&timeout_s=5.0"
    settings = read_settings(url, {})
    assert settings.servers == "one:9092,two:9093"
    assert (settings.prefix, settings.replicas, settings.timeout_s) == ("shop", 3, 5.0)
    assert settings.url == url
    assert read_settings("kafka://h:1/p", {}).url == "kafka://h:1/p"
    tls = "kafka://h:1/p?security=sasl_ssl&mechanism=SCRAM-SHA-512&ca=/etc/ca.pem"
    assert read_settings(tls, {}).url == tls


@pytest.mark.parametrize(
    "url",
    [
        "kafka:///prefix",
        "kafka://host/prefix",
        "kafka://host:0/prefix",
        "kafka://host:99999/prefix",
        "kafka://host:9092,/prefix",
        "kafka://host:9092",
        "kafka://host:9092/",
        "kafka://host:9092/a_b",
        "kafka://host:9092/a/b",
        "kafka://host:9092/p#x",
        "kafka://host:9092/p?replicas=0",
        "kafka://host:9092/p?replicas=1.5",
        "kafka://host:9092/p?timeout_s=never",
        "kafka://host:9092/p?flush=sometimes",
        "kafka://host:9092/p?flush",
        "kafka://host:9092/p?password=canary-271828",
    ],
)
def test_what_says_nothing_is_refused(url: str) -> None:
    with pytest.raises(UsageInvalid) as caught:
        read_settings(url, {})
    assert "canary" not in str(caught.value)


def test_secrets_never_come_from_a_url_and_never_go_into_one(tmp_path: Path) -> None:
    with pytest.raises(UsageInvalid) as caught:
        read_settings("kafka://me:canary-271828@host:9092/p", {})
    assert "canary" not in str(caught.value)
    given = {"HOLDFAST_KAFKA_USERNAME": "me", "HOLDFAST_KAFKA_PASSWORD": "canary-271828"}
    settings = read_settings("kafka://h:1/p?security=sasl_ssl", given)
    assert settings.client()["sasl.password"] == "canary-271828"
    assert "canary" not in settings.url + repr(settings)
    file = tmp_path / "secrets"
    file.write_text("username = you\npassword=canary-3=4\n")
    found = read_settings("kafka://h:1/p?security=sasl_ssl", {"HOLDFAST_KAFKA_SECRETS": str(file)})
    assert (found.username, found.password) == ("you", "canary-3=4")
    with pytest.raises(HoldfastError) as missing:
        read_settings("kafka://h:1/p", {"HOLDFAST_KAFKA_SECRETS": str(tmp_path / "none")})
    assert missing.value.code == "STORAGE_FAILED"
