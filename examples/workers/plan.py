"""Who works, and who sends what to whom. A group's topic has a partition per worker.

client --> filter (2) --> aggregator (2) --> maximizer --> joiner-names, joiner-users --> answers
              \\_______________/ \\___________________________/
                coordinator: releases each aggregator once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.workers.roles import Aggregator, Filter, JoinNames, JoinUsers, Maximizer

from holdfast.worker.coordinator import Coordinator
from holdfast.worker.loop import Reporting
from holdfast.worker.reports import TABLE_TYPE as REPORTS
from holdfast.worker.roles import Output, Role

FILTERS, AGGREGATORS = 2, 2
CLIENT = "client"
ANSWERS = "answers"
MAXIMIZER, NAMES, USERS = "maximizer-0", "joiner-names-0", "joiner-users-0"
COORDINATOR = "coordinator-0"

filters = [f"filter-{n}" for n in range(FILTERS)]
aggregators = [f"aggregator-{n}" for n in range(AGGREGATORS)]
_held = [Output(to, table) for to in aggregators for table in ("volumes", "visits", "sales")]


@dataclass(frozen=True)
class Group:
    """The workers of one kind: what they do, how many, who fills their tables."""

    role: Role[Any]
    workers: int
    senders: Mapping[str, Sequence[str]]
    reporting: Reporting | None = None


GROUPS: dict[str, Group] = {
    "filter": Group(
        Filter(aggregators, ANSWERS),
        FILTERS,
        {"transactions": [CLIENT], "transaction_items": [CLIENT]},
        Reporting(COORDINATOR, held=_held),
    ),
    "aggregator": Group(
        Aggregator(MAXIMIZER, NAMES),
        AGGREGATORS,
        {"volumes": filters, "visits": filters, "sales": filters},
        Reporting(COORDINATOR),
    ),
    "coordinator": Group(
        Coordinator(dict.fromkeys(_held, filters)), 1, {REPORTS: [*filters, *aggregators]}
    ),
    "maximizer": Group(Maximizer(NAMES, USERS), 1, {"sales": aggregators, "visits": aggregators}),
    "joiner-names": Group(
        JoinNames(ANSWERS),
        1,
        {
            "stores": [CLIENT],
            "menu_items": [CLIENT],
            "volumes": aggregators,
            "best_quantity": [MAXIMIZER],
            "best_profit": [MAXIMIZER],
        },
    ),
    "joiner-users": Group(
        JoinUsers(ANSWERS), 1, {"stores": [CLIENT], "top_users": [MAXIMIZER], "users": [CLIENT]}
    ),
}

INPUTS: dict[str, Sequence[str]] = {
    "transactions": filters,
    "transaction_items": filters,
    "stores": [NAMES, USERS],
    "menu_items": [NAMES],
    "users": [USERS],
}
"""Where the client sends each table: the large ones are dealt out, others go to all as a whole."""
DEALT = ("transactions", "transaction_items")

SENDERS_OF_ANSWERS: dict[str, Sequence[str]] = {
    "q1": filters,
    "q2_quantity": [NAMES],
    "q2_profit": [NAMES],
    "q3": [NAMES],
    "q4": [USERS],
}
HEADERS = {
    "q1": ("transaction_id", "final_amount"),
    "q2_quantity": ("year_month_created_at", "item_name", "sellings_qty"),
    "q2_profit": ("year_month_created_at", "item_name", "profit_sum"),
    "q3": ("year_half_created_at", "store_name", "tpv"),
    "q4": ("store_name", "birthdate"),
}


def place_of(worker: str) -> tuple[str, int]:
    """Return a worker's group and number: `filter-1` is worker 1 of the filters."""
    group, _, number = worker.rpartition("-")
    return group, int(number)


def destinations(name: str) -> list[str]:
    """Return to whom the workers of a group send; a coordinator: to those whom it releases."""
    group = GROUPS[name]
    found = [output.to for output in group.role.outputs]
    if group.reporting is not None:
        found.append(group.reporting.to)
    if name == "coordinator":
        found += aggregators
    return list(dict.fromkeys(found))
