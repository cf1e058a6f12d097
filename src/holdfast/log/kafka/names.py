"""What a topic and a group are called on a broker. Pure.

Kafka takes letters, digits, `-`, `.` and `_`, up to 249 of them, and refuses two topics that
differ only in `.` against `_`. Names here may be any text. So a name is written with letters,
digits and `-` as they are and every other byte as `_xx`; one `.` parts the prefix from the topic,
and a prefix holds no `_`. Two topics never share a name on the broker.
"""

from __future__ import annotations

import re
from functools import lru_cache

from holdfast._base.ids import digest

NAME_MAX = 249
"""What Kafka takes. Longer names end in a hash of the whole."""
_KEPT_MAX = 150
_PLAIN = re.compile(r"[A-Za-z0-9-]")
PREFIX = re.compile(r"[A-Za-z0-9-]{1,64}")
MARK = "_mark"
"""Stands where a group's name would: no group is written like this."""


def _written(text: str) -> str:
    parts = (
        character
        if _PLAIN.fullmatch(character)
        else "".join(f"_{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
        for character in text
    )
    return "".join(parts)


@lru_cache(maxsize=1024)
def topic_name(prefix: str, topic: str) -> str:
    """Return what `topic` is called on the broker. Every batch asks, so the last are kept."""
    name = f"{prefix}.{_written(topic)}"
    if len(name) <= NAME_MAX:
        return name
    return f"{name[:_KEPT_MAX]}__{digest('topic', topic)}"


def group_prefix(name: str) -> str:
    """Return how the names of all groups of a topic begin, by the topic's name on the broker."""
    return f"{name}."


def group_name(name: str, group: str) -> str:
    """Return what a group of a topic is called on the broker, where every topic has its own."""
    return f"{group_prefix(name)}{_written(group)}"


def mark_name(name: str) -> str:
    """Return the group whose position says from which offset on a topic is still held."""
    return f"{group_prefix(name)}{MARK}"
