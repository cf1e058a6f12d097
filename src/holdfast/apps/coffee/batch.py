"""The five answers by one plain PySpark batch: no Holdfast in it, the yardstick of the pipeline.

It is the quickest script we know how to write with Spark's own CSV reader. Each input is read
once: transactions serve three answers, so what those need of them is persisted; items are summed
up at once to a few hundred rows, which are. Nothing survives a crash: run it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MONEY: Final = r"regexp_replace(cast(cast(\1 as decimal(38,3)) as string), r'(\\.\\d+?)0+$', '$1')"
"""What MONEY(column) stands for in the queries: a plain decimal with at least one digit after the
dot and no superfluous one.
"""

_BEST: Final = """
    select concat_ws('-', month div 100, lpad(month % 100, 2, '0')) as year_month_created_at,
           coalesce(item_name, cast(item_id as string)) as item_name, {shown}
    from (select *, row_number() over (partition by month order by {value} desc, item_id) as place
          from {{sales}}) left join {{menu_items}} using (item_id) where place = 1"""

ANSWERS: Final = {
    "q1": (
        ("transaction_id",),
        """select transaction_id, MONEY(amount) as final_amount
           from {kept} where is_open and amount >= 75""",
    ),
    "q2_quantity": (
        ("year_month_created_at",),
        _BEST.format(value="quantity", shown="quantity as sellings_qty"),
    ),
    "q2_profit": (
        ("year_month_created_at",),
        _BEST.format(value="profit", shown="MONEY(profit) as profit_sum"),
    ),
    "q3": (
        ("year_half_created_at", "store_name"),
        """select concat(half div 10, '-H', half % 10) as year_half_created_at,
                  coalesce(store_name, cast(store_id as string)) as store_name, MONEY(amount) as tpv
           from (select half, store_id, sum(amount) as amount from {kept} where is_open
                 group by half, store_id) left join {stores} using (store_id)""",
    ),
    "q4": (
        ("store_name", "birthdate"),
        """select coalesce(store_name, cast(store_id as string)) as store_name, birthdate
           from (select store_id, explode(max_by(user_id, struct(n, -user_id), 3)) as user_id
                 from (select store_id, user_id, count(*) as n from {kept}
                       where user_id is not null group by store_id, user_id)
                 group by store_id)
               left join {stores} using (store_id) left join {users} using (user_id)""",
    ),
}
"""Each answer's order and query, from what is kept of transactions and from the sums of items."""

_TYPED: Final = {
    "kept": """
        select transaction_id, store_id, cast(user_id as bigint) as user_id, final_amount as amount,
               year(created_at) * 10 + if(month(created_at) <= 6, 1, 2) as half,
               hour(created_at) * 3600 + minute(created_at) * 60 + second(created_at)
                   between 6 * 3600 and 23 * 3600 as is_open
        from {transactions} where created_at >= timestamp_ntz'2024-01-01'
            and created_at < timestamp_ntz'2026-01-01'""",
    "sales": """
        select year(created_at) * 100 + month(created_at) as month, item_id,
               sum(quantity) as quantity, sum(subtotal) as profit
        from {transaction_items} where created_at >= timestamp_ntz'2024-01-01'
            and created_at < timestamp_ntz'2026-01-01'
        group by 1, 2""",
}
_FROM_TEXT: Final = {
    "kept": """
        select transaction_id, cast(store_id as int) as store_id,
               cast(substring_index(user_id, '.', 1) as bigint) as user_id,
               cast(final_amount as decimal(12,3)) as amount,
               cast(left(created_at, 4) as int) * 10 + if(substr(created_at, 6, 2) <= '06', 1, 2)
                   as half,
               substr(created_at, 12) between '06:00:00' and '23:00:00' as is_open
        from {transactions} where created_at >= '2024' and created_at < '2026'""",
    "sales": """
        select cast(month as int) as month, cast(item_id as int) as item_id,
               sum(cast(quantity as int)) as quantity,
               sum(cast(subtotal as decimal(12,3))) as profit
        from (select *, concat(left(created_at, 4), substr(created_at, 6, 2)) as month
              from {transaction_items} where created_at >= '2024' and created_at < '2026')
        group by 1, 2""",
}

_TYPES: Final = re.compile(r"(?<=\w) [a-z_]+(\([\d,]+\))?(?=,|$)")
"""The types in a declaration such as `store_id int, final_amount decimal(12,3)`."""


def typed_batch(spark: SparkSession, data: Path, out: Path, schemas: Mapping[str, str]) -> None:
    """Write q1.csv to q4.csv, with every column parsed as declared: `schemas` by table."""
    _write(spark, data, out, schemas, _TYPED)


def text_batch(spark: SparkSession, data: Path, out: Path, schemas: Mapping[str, str]) -> None:
    """Write the same, tuned by hand: columns stay texts, and only what is needed is converted.

    A bad number becomes null and nobody is told.
    """
    large = ("transactions", "transaction_items")
    texts = {name: _TYPES.sub(" string", schemas[name]) for name in large}
    _write(spark, data, out, {**schemas, **texts}, _FROM_TEXT)


def _write(
    spark: SparkSession,
    data: Path,
    out: Path,
    schemas: Mapping[str, str],
    queries: Mapping[str, str],
) -> None:
    frames: dict[str, Any] = {
        name: spark.read.csv(_paths(data, name), schema=schemas[name], header=True)
        for name in ("transactions", "transaction_items", "users", "stores", "menu_items")
    }
    made: dict[str, Any] = {
        name: spark.sql(query, **frames).persist() for name, query in queries.items()
    }
    try:
        for name, (order, query) in ANSWERS.items():
            frame = spark.sql(re.sub(r"MONEY\((\w+)\)", _MONEY, query), **frames, **made)
            # One small file each: sorting one partition needs no sampling job.
            ordered = frame.repartition(1).sortWithinPartitions(*order)
            ordered.write.csv(str(out / name), header=True)
            next((out / name).glob("part-*.csv")).rename(out / f"{name}.csv")
    finally:
        for frame in made.values():
            frame.unpersist()


def _paths(data: Path, table: str) -> list[str]:
    return [
        str(path) for path in sorted([*data.glob(f"{table}.csv"), *data.glob(f"{table}_2*.csv")])
    ]
