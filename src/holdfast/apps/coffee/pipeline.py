"""Coffee-shop analytics: five answers from seven tables, with the public API only.

Money is counted in units of 0.005, so sums are exact whatever their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

pipe = Pipeline("coffee", version="1")

transactions = pipe.input(
    "transactions",
    schema="""transaction_id string, store_id int, payment_method_id int, voucher_id string,
              user_id decimal(20,3), original_amount decimal(12,3), discount_applied decimal(12,3),
              final_amount decimal(12,3), created_at timestamp_ntz""",
)
transaction_items = pipe.input(
    "transaction_items",
    schema="""transaction_id string, item_id int, quantity int, unit_price decimal(12,3),
              subtotal decimal(12,3), created_at timestamp_ntz""",
)
users = pipe.input(
    "users", schema="user_id bigint, gender string, birthdate string, registered_at string"
)
stores = pipe.input(
    "stores",
    schema="""store_id int, store_name string, street string, postal_code string, city string,
              state string, latitude string, longitude string""",
    whole=True,
)
menu_items = pipe.input(
    "menu_items",
    schema="""item_id int, item_name string, category string, price decimal(12,3),
              is_seasonal string, available_from string, available_to string""",
    whole=True,
)
pipe.input(
    "payment_methods",
    schema="method_id string, method_name string, category string",
    whole=True,
    optional=True,
)
pipe.input(
    "vouchers",
    schema="""voucher_id string, voucher_code string, discount_type string,
              discount_value string, valid_from string, valid_to string""",
    whole=True,
    optional=True,
)


UNITS = "cast({} * 200 as bigint)"
"""An amount as a whole number of units of 0.005."""


def plain(column: str) -> Column:
    """Return units of 0.005 as a plain decimal with at least one digit and no superfluous one."""
    from pyspark.sql import functions as F

    text = (F.col(column) * F.lit(5)).cast("decimal(38,0)") / F.lit(1000).cast("decimal(38,0)")
    return F.regexp_replace(text.cast("decimal(38,3)").cast("string"), r"(\.\d+?)0+$", "$1")


RECENT = "created_at >= timestamp_ntz'2024-01-01' and created_at < timestamp_ntz'2026-01-01'"


@pipe.stage
def recent(transactions: DataFrame) -> DataFrame:
    """Of the transactions of 2024 and 2025 what the answers need: three of them share these rows,
    so each is as small as it can be. A half-year is a number: 20241 is 2024-H1.
    """
    time = "hour(created_at) * 3600 + minute(created_at) * 60 + second(created_at)"
    return transactions.where(RECENT).selectExpr(
        "transaction_id",
        "store_id",
        "cast(user_id as bigint) as user_id",  # float text in this table: 17272.0
        f"{UNITS.format('final_amount')} as amount",
        "year(created_at) * 10 + if(month(created_at) <= 6, 1, 2) as half",
        f"{time} between 6 * 3600 and 23 * 3600 as is_open",
    )


@pipe.stage
def open_hours(recent: DataFrame) -> DataFrame:
    """Those between 06:00:00 and 23:00:00, both ends included."""
    return recent.where("is_open")


@pipe.result("q1", streamed=True, order_by=["transaction_id"])
def q1(open_hours: DataFrame) -> DataFrame:
    """Transactions of at least 75."""
    large = open_hours.where(f"amount >= {75 * 200}")
    return large.select("transaction_id", plain("amount").alias("final_amount"))


tpv = pipe.combine("tpv", open_hours, by=["half", "store_id"], sum=["amount"])


@pipe.result("q3", order_by=["year_half_created_at", "store_name"])
def q3(tpv: DataFrame, stores: DataFrame) -> DataFrame:
    """Total payment value per half-year and store."""
    named = tpv.join(stores.select("store_id", "store_name"), "store_id", "left")
    return named.selectExpr(
        "concat(half div 10, '-H', half % 10) as year_half_created_at",
        "coalesce(store_name, cast(store_id as string)) as store_name",
        "amount",
    ).select("year_half_created_at", "store_name", plain("amount").alias("tpv"))


@pipe.stage
def sold(transaction_items: DataFrame) -> DataFrame:
    """Items of 2024 and 2025 with their month (202401), quantity and subtotal in units."""
    month = "year(created_at) * 100 + month(created_at) as month"
    return transaction_items.where(RECENT).selectExpr(
        month, "item_id", "quantity", f"{UNITS.format('subtotal')} as profit"
    )


sales = pipe.combine("sales", sold, by=["month", "item_id"], sum=["quantity", "profit"])


def best(sales: DataFrame, menu_items: DataFrame, value: str) -> DataFrame:
    """Per month the item with the largest `value`; ties go to the lowest item_id."""
    rank = f"row_number() over (partition by month order by {value} desc, item_id)"
    first = sales.selectExpr("*", f"{rank} as place").where("place = 1")
    named = first.join(menu_items.select("item_id", "item_name"), "item_id", "left")
    return named.selectExpr(
        "concat(month div 100, '-', lpad(month % 100, 2, '0')) as year_month_created_at",
        "coalesce(item_name, cast(item_id as string)) as item_name",
        value,
    )


@pipe.result("q2_quantity", order_by=["year_month_created_at"])
def q2_quantity(sales: DataFrame, menu_items: DataFrame) -> DataFrame:
    """Per month the item sold most often."""
    return best(sales, menu_items, "quantity").withColumnRenamed("quantity", "sellings_qty")


@pipe.result("q2_profit", order_by=["year_month_created_at"])
def q2_profit(sales: DataFrame, menu_items: DataFrame) -> DataFrame:
    """Per month the item that brought in most."""
    top = best(sales, menu_items, "profit")
    return top.select("year_month_created_at", "item_name", plain("profit").alias("profit_sum"))


@pipe.stage
def members(recent: DataFrame) -> DataFrame:
    """Purchases by a known user."""
    return recent.where("user_id is not null").select("store_id", "user_id")


purchases = pipe.combine("purchases", members, by=["store_id", "user_id"], count="n")


@pipe.result("q4", order_by=["store_name", "birthdate"])
def q4(purchases: DataFrame, users: DataFrame, stores: DataFrame) -> DataFrame:
    """Per store the three users with most purchases; ties go to the lower user_id."""
    from pyspark.sql import functions as F

    # Not a window with row_number: that sorts every pair of store and user to find thirty.
    best = F.max_by("user_id", F.struct("n", -F.col("user_id")), 3).alias("best")
    top = purchases.groupBy("store_id").agg(best).selectExpr("store_id", "explode(best) as user_id")
    named = top.join(stores.select("store_id", "store_name"), "store_id", "left")
    known = users.select("user_id", "birthdate")
    return named.join(known, "user_id", "left").selectExpr(
        "coalesce(store_name, cast(store_id as string)) as store_name", "birthdate"
    )
