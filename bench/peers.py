"""The five coffee answers by DuckDB and by Polars: for orientation, how fast one machine can be.

Neither survives a crash, nor promises anything about a file that changes meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

from holdfast.apps.coffee.tables import HEADERS

_RECENT = "created_at >= '2024-01-01' AND created_at < '2026-01-01'"
_TYPES = {
    "store_id": "INTEGER",
    "item_id": "INTEGER",
    "user_id": "DECIMAL(20,3)",
    "quantity": "INTEGER",
    "final_amount": "DECIMAL(12,3)",
    "subtotal": "DECIMAL(12,3)",
    "created_at": "TIMESTAMP",
}
"""Of the columns that are used; the others stay texts and are not converted."""
_PLAIN = "regexp_replace(CAST(CAST({} AS DECIMAL(38,3)) AS VARCHAR), '(\\.\\d+?)0+$', '\\1')"
_BEST = """
    SELECT month AS year_month_created_at, item_name, {shown} FROM (
        SELECT *, row_number() OVER (PARTITION BY month ORDER BY {value} DESC, item_id) AS place
        FROM sales) JOIN {menu_items} USING (item_id)
    WHERE place = 1 ORDER BY month"""
_TABLES = {
    "kept": f"""
        SELECT transaction_id, store_id, CAST(user_id AS BIGINT) AS user_id, final_amount,
               year(created_at) || '-H' || if(month(created_at) <= 6, 1, 2) AS half,
               CAST(created_at AS TIME) BETWEEN '06:00:00' AND '23:00:00' AS is_open
        FROM {{transactions}} WHERE {_RECENT}""",
    "sales": f"""
        SELECT strftime(created_at, '%Y-%m') AS month, item_id, sum(quantity) AS quantity,
               sum(subtotal) AS profit
        FROM {{items}} WHERE {_RECENT} GROUP BY ALL""",
}
_QUERIES = {
    "q1": f"""SELECT transaction_id, {_PLAIN.format("final_amount")} AS final_amount FROM kept
              WHERE is_open AND final_amount >= 75 ORDER BY transaction_id""",
    "q2_quantity": _BEST.replace("{value}", "quantity").replace(
        "{shown}", "quantity AS sellings_qty"
    ),
    "q2_profit": _BEST.replace("{value}", "profit").replace(
        "{shown}", f"{_PLAIN.format('profit')} AS profit_sum"
    ),
    "q3": f"""SELECT half AS year_half_created_at, store_name, {_PLAIN.format("sum(final_amount)")}
                  AS tpv
              FROM kept JOIN {{stores}} USING (store_id)
              WHERE is_open GROUP BY half, store_name ORDER BY half, store_name""",
    "q4": """SELECT store_name, birthdate FROM (
                 SELECT *, row_number() OVER (PARTITION BY store_id ORDER BY n DESC, user_id)
                     AS place
                 FROM (SELECT store_id, user_id, count(*) AS n FROM kept
                       WHERE user_id IS NOT NULL GROUP BY ALL))
             JOIN {stores} USING (store_id)
             JOIN {users} USING (user_id)
             WHERE place <= 3 ORDER BY store_name, birthdate""",
}


# Every file is asked for its types alone otherwise, and one without rows says text.
_AMOUNTS: dict[str, pl.DataType] = {
    "store_id": pl.Int64(),
    "user_id": pl.String(),
    "final_amount": pl.Decimal(12, 3),
    "created_at": pl.String(),
}
_MONEY: dict[str, pl.DataType] = {
    "item_id": pl.Int64(),
    "quantity": pl.Int64(),
    "subtotal": pl.Decimal(12, 3),
    "created_at": pl.String(),
}
_PEOPLE: dict[str, pl.DataType] = {"user_id": pl.Int64(), "birthdate": pl.String()}


def run_duckdb(data: Path, out: Path) -> None:
    """Write the five answers with DuckDB, each input read once."""
    tables = {
        "transactions": _reader(data, "transactions", "transactions_*.csv"),
        "items": _reader(data, "transaction_items", "transaction_items_*.csv"),
        "users": _reader(data, "users", "users_*.csv"),
        "stores": _reader(data, "stores", "stores.csv"),
        "menu_items": _reader(data, "menu_items", "menu_items.csv"),
    }
    with duckdb.connect() as connection:
        for name, query in {**_TABLES, **_QUERIES}.items():
            text = query.format(**tables)
            if name in _TABLES:
                connection.execute(f"CREATE TEMP TABLE {name} AS {text}")
            else:
                connection.execute(f"COPY ({text}) TO '{out / name}.csv' (HEADER)")


def _reader(data: Path, table: str, files: str) -> str:
    """Return the expression that reads a table. Told all, DuckDB need not look into every file."""
    types = {name: _TYPES.get(name, "VARCHAR") for name in HEADERS[table].split(",")}
    return f"read_csv('{data}/{files}', header=true, delim=',', auto_detect=false, columns={types})"


def run_polars(data: Path, out: Path) -> None:
    """Write the five answers with Polars, all in one plan."""
    created, second = pl.col("created_at"), pl.col("created_at").str.slice(11)
    is_recent = (created >= "2024") & (created < "2026")
    transactions = pl.scan_csv(data / "transactions_*.csv", schema_overrides=_AMOUNTS)
    kept = transactions.filter(is_recent)
    opened = kept.filter(second.is_between(pl.lit("06:00:00"), pl.lit("23:00:00")))
    stores = pl.scan_csv(data / "stores.csv").select("store_id", "store_name")
    half = pl.when(created.str.slice(5, 2) <= "06").then(pl.lit("-H1")).otherwise(pl.lit("-H2"))
    q3 = opened.group_by((created.str.slice(0, 4) + half).alias("half"), "store_id")
    user = pl.col("user_id").str.split(".").list.first().cast(pl.Int64).alias("user_id")
    top = (
        kept.filter(pl.col("user_id").is_not_null())
        .group_by("store_id", user)
        .agg(pl.len().alias("n"))
        .sort("n", "user_id", descending=[True, False])
        .group_by("store_id", maintain_order=True)
        .head(3)
    )
    items = pl.scan_csv(data / "transaction_items_*.csv", schema_overrides=_MONEY)
    sales = (
        items.filter(is_recent)
        .group_by(created.str.slice(0, 7).alias("year_month_created_at"), "item_id")
        .agg(pl.col("quantity").sum(), pl.col("subtotal").sum().alias("profit"))
    )
    users = pl.scan_csv(data / "users_*.csv", schema_overrides=_PEOPLE)
    frames = {
        "q1": opened.filter(pl.col("final_amount") >= 75)
        .select("transaction_id", _plain("final_amount"))
        .sort("transaction_id"),
        "q2_quantity": _best(sales, data, pl.col("quantity").alias("sellings_qty")),
        "q2_profit": _best(sales, data, _plain("profit").alias("profit_sum")),
        "q3": q3.agg(pl.col("final_amount").sum().alias("tpv"))
        .join(stores, on="store_id")
        .select(pl.col("half").alias("year_half_created_at"), "store_name", _plain("tpv"))
        .sort("year_half_created_at", "store_name"),
        "q4": top.join(stores, on="store_id")
        .join(users.select("user_id", "birthdate"), on="user_id")
        .select("store_name", "birthdate")
        .sort("store_name", "birthdate"),
    }
    for name, frame in zip(frames, pl.collect_all(list(frames.values())), strict=True):
        frame.write_csv(out / f"{name}.csv")


def _plain(column: str) -> pl.Expr:
    """Return a sum as a plain decimal with at least one digit and no superfluous one."""
    text = pl.col(column).cast(pl.Decimal(38, 3)).cast(pl.String)
    return text.str.replace(r"(\.\d+?)0+$", "$1").alias(column)


def _best(sales: pl.LazyFrame, data: Path, shown: pl.Expr) -> pl.LazyFrame:
    value = shown.meta.root_names()[0]
    menu = pl.scan_csv(data / "menu_items.csv").select("item_id", "item_name")
    first = sales.sort(value, "item_id", descending=[True, False])
    best = first.group_by("year_month_created_at", maintain_order=True).first()
    return (
        best.join(menu, on="item_id")
        .select("year_month_created_at", "item_name", shown)
        .sort("year_month_created_at")
    )
