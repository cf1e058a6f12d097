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


def units(column: str) -> Column:
    """Return an amount as a whole number of units of 0.005."""
    from pyspark.sql import functions as F

    return (F.col(column) * 200).cast("bigint")


def plain(column: str) -> Column:
    """Return units of 0.005 as a plain decimal with at least one digit and no superfluous one."""
    from pyspark.sql import functions as F

    text = (F.col(column) * F.lit(5)).cast("decimal(38,0)") / F.lit(1000).cast("decimal(38,0)")
    return F.regexp_replace(text.cast("decimal(38,3)").cast("string"), r"(\.\d+?)0+$", "$1")


@pipe.stage
def recent(transactions: DataFrame) -> DataFrame:
    """Transactions of 2024 and 2025, with amounts in units."""
    return transactions.where("year(created_at) in (2024, 2025)").select(
        "transaction_id", "store_id", "user_id", units("final_amount").alias("amount"), "created_at"
    )


@pipe.stage
def open_hours(recent: DataFrame) -> DataFrame:
    """Those between 06:00:00 and 23:00:00, both ends included."""
    return recent.where("date_format(created_at, 'HH:mm:ss') between '06:00:00' and '23:00:00'")


@pipe.result("q1", streamed=True, order_by=["transaction_id"])
def q1(open_hours: DataFrame) -> DataFrame:
    """Transactions of at least 75."""
    large = open_hours.where(f"amount >= {75 * 200}")
    return large.select("transaction_id", plain("amount").alias("final_amount"))


@pipe.stage
def halves(open_hours: DataFrame) -> DataFrame:
    """The half-year of each transaction: YYYY-H1 or YYYY-H2."""
    half = "concat(year(created_at), '-H', if(month(created_at) <= 6, 1, 2))"
    return open_hours.selectExpr(f"{half} as half", "store_id", "amount")


tpv = pipe.combine("tpv", halves, by=["half", "store_id"], sum=["amount"])


@pipe.result("q3", order_by=["year_half_created_at", "store_name"])
def q3(tpv: DataFrame, stores: DataFrame) -> DataFrame:
    """Total payment value per half-year and store."""
    named = tpv.join(stores.select("store_id", "store_name"), "store_id", "left")
    return named.selectExpr(
        "half as year_half_created_at",
        "coalesce(store_name, cast(store_id as string)) as store_name",
        "amount",
    ).select("year_half_created_at", "store_name", plain("amount").alias("tpv"))


@pipe.stage
def sold(transaction_items: DataFrame) -> DataFrame:
    """Items of 2024 and 2025 with their month, quantity and subtotal in units."""
    recent = transaction_items.where("year(created_at) in (2024, 2025)")
    month = "date_format(created_at, 'yyyy-MM') as month"
    return recent.selectExpr(month, "item_id", "quantity", "subtotal").select(
        "month", "item_id", "quantity", units("subtotal").alias("profit")
    )


sales = pipe.combine("sales", sold, by=["month", "item_id"], sum=["quantity", "profit"])


def best(sales: DataFrame, menu_items: DataFrame, value: str) -> DataFrame:
    """Per month the item with the largest `value`; ties go to the lowest item_id."""
    rank = f"row_number() over (partition by month order by {value} desc, item_id)"
    first = sales.selectExpr("*", f"{rank} as place").where("place = 1")
    named = first.join(menu_items.select("item_id", "item_name"), "item_id", "left")
    name = "coalesce(item_name, cast(item_id as string)) as item_name"
    return named.selectExpr("month as year_month_created_at", name, value)


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
    """Purchases by a known user, whose id is float text in this table: 17272.0."""
    known = recent.where("user_id is not null")
    return known.selectExpr("store_id", "cast(user_id as bigint) as user_id")


purchases = pipe.combine("purchases", members, by=["store_id", "user_id"], count="n")


@pipe.result("q4", order_by=["store_name", "birthdate"])
def q4(purchases: DataFrame, users: DataFrame, stores: DataFrame) -> DataFrame:
    """Per store the three users with most purchases; ties go to the lower user_id."""
    rank = "row_number() over (partition by store_id order by n desc, user_id)"
    top = purchases.selectExpr("*", f"{rank} as place").where("place <= 3")
    named = top.join(stores.select("store_id", "store_name"), "store_id", "left")
    known = users.select("user_id", "birthdate")
    return named.join(known, "user_id", "left").selectExpr(
        "coalesce(store_name, cast(store_id as string)) as store_name", "birthdate"
    )
