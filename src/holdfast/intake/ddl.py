"""Column names of a schema written as Spark DDL, without Spark. Pure."""

from __future__ import annotations

import re

from holdfast.errors import UsageInvalid

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*:?\s+\S")
_WORD = re.compile(r"`(?:[^`]|``)*`|[(<]|[)>]|,|[^`(<)>,]+")


def column_names(schema: str) -> list[str]:
    """Return the names of the columns of `schema`, in order.

    Raises:
        UsageInvalid: a part of it is not "name type".
    """
    names = []
    for part in _parts(schema):
        match = _COLUMN.match(part)
        if match is None:
            what = f"the schema {schema!r} has a part {part.strip()!r} that is not 'name type'"
            raise UsageInvalid(what=what, remedy="Write it like 'id string, amount decimal(9,3)'.")
        quoted, plain = match.groups()
        names.append(plain if quoted is None else quoted.replace("``", "`"))
    return names


def _parts(schema: str) -> list[str]:
    """Split at the commas that are not inside a type, as in decimal(10, 2) or map<int, int>."""
    parts = [""]
    depth = 0
    words = _WORD.findall(schema)
    if "".join(words) != schema:
        what = f"the schema {schema!r} has a backtick without its partner"
        raise UsageInvalid(what=what, remedy="Quote a name as `name`.")
    for word in words:
        depth += (word in "(<") - (word in ")>")
        if word == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += word
    return parts
