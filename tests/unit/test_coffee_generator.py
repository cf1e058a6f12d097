"""The coffee-shop generator: determinism, format, distributions, hard mode's files and rows."""

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from holdfast.apps.coffee.draw import day_of_user, draw_day, draw_people, plan_days
from holdfast.apps.coffee.generator import GeneratedFiles, generate
from holdfast.apps.coffee.hard import EDGES, RUN, month_edges
from holdfast.apps.coffee.tables import (
    HEADERS,
    MONTHS,
    VOUCHERS,
    date_of,
    days_of_month,
    money_text,
)
from holdfast.apps.coffee.text import item_lines, transaction_lines, user_lines

SCALE = 0.0005
SEED = 7

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
MONEY = r"(0|[1-9]\d*)\.\d{1,3}"
STAMP = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
LINE = {
    "users": rf"[1-9]\d*,(male|female),\d{{4}}-\d\d-\d\d,{STAMP}",
    "transactions": (
        rf"{UUID},([1-9]|10),[1-5],([1-9]|1[0-6])?,([1-9]\d*\.0)?,{MONEY},{MONEY},{MONEY},{STAMP}"
    ),
    "transaction_items": rf"{UUID},[1-8],[1-3],{MONEY},{MONEY},{STAMP}",
}


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("coffee") / "normal"
    generate(out, scale=SCALE, seed=SEED)
    return out


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GeneratedFiles]:
    out = tmp_path_factory.mktemp("coffee") / "hard"
    return out, generate(out, scale=SCALE, seed=SEED, hard=True)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_same_seed_gives_same_bytes_and_another_seed_other_rows(
    normal: Path, tmp_path: Path
) -> None:
    """Generate again with the same and with another seed and compare the files."""
    generate(tmp_path / "again", scale=SCALE, seed=SEED)
    generate(tmp_path / "other", scale=SCALE, seed=SEED + 1)
    first, other = contents(normal), contents(tmp_path / "other")
    assert first == contents(tmp_path / "again")
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first if name.startswith("transaction"))


def test_a_day_made_alone_equals_the_same_day_in_the_whole(normal: Path) -> None:
    """Draw single days, late ones first, and look for their rows in the monthly files."""
    for number in (730, 366, 40):
        plan = plan_days(scale=SCALE, seed=SEED, hard=False)
        day = draw_day(plan, number)
        date = date_of(number)
        for table, lines in (
            ("users", user_lines),
            ("transactions", transaction_lines),
            ("transaction_items", item_lines),
        ):
            alone = b"".join(lines(plan, day, "\n")).splitlines()
            whole = (normal / f"{table}_{date:%Y%m}.csv").read_bytes().splitlines()
            of_day = [line for line in whole if f",{date} ".encode() in line]
            assert alone == of_day


def test_every_line_has_the_published_format(normal: Path) -> None:
    """Match headers and all rows of the monthly tables of normal mode with the format's pattern."""
    for table, pattern in LINE.items():
        files = sorted(normal.glob(f"{table}_2*.csv"))
        assert len(files) == 24
        for path in files:
            text = path.read_bytes().decode("ascii")
            header, *lines = text.removesuffix("\n").split("\n")
            assert header == HEADERS[table]
            assert text.endswith("\n")
            assert all(re.fullmatch(pattern, line) for line in lines)
            assert all(line[-19:-12].replace("-", "") == path.stem[-6:] for line in lines)


def test_small_tables_are_whole_and_unquoted(normal: Path) -> None:
    """Count rows and columns of the single files."""
    for table, rows in (
        ("menu_items", 8),
        ("stores", 10),
        ("payment_methods", 5),
        ("vouchers", 16),
    ):
        text = (normal / f"{table}.csv").read_text()
        header, *lines = text.splitlines()
        assert header == HEADERS[table]
        assert len(lines) == rows
        assert '"' not in text
        assert all(line.count(",") == header.count(",") for line in lines)


def test_row_order_is_not_time_order(normal: Path) -> None:
    """Check that the timestamps of a file go up and down."""
    lines = (normal / "transactions_202411.csv").read_text().splitlines()[1:]
    stamps = [line[-19:] for line in lines]
    assert stamps != sorted(stamps)
    assert [stamp[:10] for stamp in stamps] != sorted(stamp[:10] for stamp in stamps)


def test_sizes_are_those_of_the_files(hard: tuple[Path, GeneratedFiles]) -> None:
    """Compare the reported rows and bytes with the files, quirks of hard mode included."""
    out, generated = hard
    assert sorted(path.name for path in out.iterdir()) == sorted(f.name for f in generated.files)
    for file in generated.files:
        with (out / file.name).open(newline="") as text:
            assert file.rows == max(0, sum(1 for _ in csv.reader(text)) - 1)
        assert file.bytes == (out / file.name).stat().st_size
    assert [size.table for size in generated.tables] == list(HEADERS)
    assert generated.size("transactions").rows == sum(
        file.rows for file in generated.files if file.name.startswith("transactions_")
    )


def test_counts_at_full_size_match_the_published_ones() -> None:
    """Draw only the counts of all days at scale 1; allow four standard deviations."""
    plan = plan_days(scale=1, seed=SEED, hard=False)
    assert abs(int(plan.transactions.sum()) - 14_623_691) < 4 * 3_824
    assert abs(plan.user_count - 2_196_257) < 4 * 1_482


def test_distributions_are_those_of_the_specification() -> None:
    """Draw one full-size day in the middle and compare shares and moments with the model."""
    plan = plan_days(scale=1, seed=SEED, hard=False)
    number = 365
    day = draw_day(plan, number)
    rows = len(day.store)
    assert abs(rows - 20_005) < 600
    assert abs(np.mean(day.user > 0) - 0.5) < 0.02
    assert abs(day.registers.sum() / (day.user > 0).sum() - 0.3) < 0.02
    assert abs(len(day.item) / rows - 2) < 0.03
    for column, choices in ((day.store, 10), (day.payment, 5), (day.item, 8), (day.quantity, 3)):
        shares = np.bincount(column)[1:] / len(column)
        assert len(shares) == choices
        assert np.all(abs(shares - 1 / choices) < 0.015)
    assert day.second.min() >= 7 * 3600
    assert day.second.max() < 20 * 3600
    # Mean and deviation of Normal(12.5, 2.5) cut to [7, 20), from the closed formula.
    assert abs(day.second.mean() / 3600 - 12.58) < 0.1
    assert abs(day.second.std() / 3600 - 2.38) < 0.1
    # Legitimate exact duplicates: 802,939 of 29,246,323 rows.
    lines = Counter(zip(day.owner.tolist(), day.item.tolist(), day.quantity.tolist(), strict=True))
    assert abs(1 - len(lines) / len(day.item) - 802_939 / 29_246_323) < 0.004


def test_bytes_per_row_at_full_size_are_the_published_ones() -> None:
    """Write the first and last days at scale 1 as text and measure the rows."""
    plan = plan_days(scale=1, seed=SEED, hard=False)
    for number, row_bytes in ((0, 77), (730, 86)):
        day = draw_day(plan, number)
        transactions = b"".join(transaction_lines(plan, day, "\n"))
        items = b"".join(item_lines(plan, day, "\n"))
        assert abs(len(transactions) / len(day.store) - row_bytes) < 0.6
        assert abs(len(items) / len(day.item) - 70) < 0.5


def test_vouchers_are_used_only_inside_their_window() -> None:
    """Draw a day inside and a day outside every window and check use, share and discount."""
    plan = plan_days(scale=0.05, seed=SEED, hard=False)
    for voucher in VOUCHERS:
        number = (voucher.valid_from - date_of(0)).days
        day = draw_day(plan, number)
        valid = {v.voucher_id for v in VOUCHERS if v.valid_from <= date_of(number) <= v.valid_to}
        assert set(np.unique(day.voucher).tolist()) == valid | {0}
        assert abs(np.mean(day.voucher > 0) - 0.75) < 0.06
        mine = day.voucher == voucher.voucher_id
        expected = (
            np.minimum(1000, day.original[mine])
            if voucher.percent is None
            else day.original[mine] * voucher.percent / 100
        )
        assert np.all(day.discount[mine] == expected)
        assert np.all(day.discount[day.voucher == 0] == 0)
    outside = draw_day(plan, 0)
    assert not outside.voucher.any()
    assert np.all(outside.final == outside.original)


def test_users_are_numbered_without_gap_and_exist_before_they_return() -> None:
    """Follow all days: new ids are consecutive, and nobody returns before registering."""
    plan = plan_days(scale=0.002, seed=SEED, hard=False)
    known = 0
    for number in range(200, 260):
        day = draw_day(plan, number)
        known = known or int(plan.users_before[number])
        for user, registers in zip(day.user.tolist(), day.registers.tolist(), strict=True):
            known += registers
            assert user == known if registers else user <= known
        assert known == plan.users_before[number + 1]
    assert day_of_user(plan, known) == 259
    assert day_of_user(plan, known + 1) != 259
    assert day_of_user(plan, 0) is day_of_user(plan, plan.user_count + 1) is None
    assert len(draw_people(plan, 259)[1]) == plan.new_users[259]


def test_amounts_print_without_superfluous_digits() -> None:
    """Print amounts with none, one, two and three decimals."""
    texts = [money_text(units) for units in (0, 1, 2, 1200, 1900, 15_000, 15_001, 15_219)]
    assert texts == ["0.0", "0.005", "0.01", "6.0", "9.5", "75.0", "75.005", "76.095"]


def test_hard_mode_shapes_files_in_all_listed_ways(hard: tuple[Path, GeneratedFiles]) -> None:
    """Look for every file shape: empty, header only, CRLF, no final newline, quoted names."""
    out, _ = hard
    for table in ("users", "transactions", "transaction_items"):
        assert (out / f"{table}_202306.csv").read_bytes() == b""
        header = (out / f"{table}_202507.csv").read_bytes()
        assert header.rstrip(b"\n") == HEADERS[table].encode()
        files = [path.read_bytes() for path in out.glob(f"{table}_20*.csv") if path.stat().st_size]
        ends = {(b"\r\n" in data, data.endswith(b"\n")) for data in files}
        assert len(ends) == 4
        assert all(data.count(b"\r") in (0, data.count(b"\n")) for data in files)
    assert '"G Coffee @ Pier 11, East"' in (out / "stores.csv").read_text()
    assert '"Matcha Latte, Iced"' in (out / "menu_items.csv").read_text()


def test_hard_mode_has_all_listed_rows(hard: tuple[Path, GeneratedFiles]) -> None:
    """Look for every listed time, amount, user text and orphan in the files."""
    out, _ = hard
    rows: list[dict[str, str]] = []
    for path in sorted(out.glob("transactions_20*.csv")):
        with path.open(newline="") as file:
            rows.extend(csv.DictReader(file))
    stamps = {row["created_at"] for row in rows}
    times = {row["created_at"][11:] for row in rows}
    assert {"2023-12-31 23:59:59", "2024-01-01 00:00:00"} <= stamps
    assert {"05:59:59", "06:00:00", "22:59:59", "23:00:00", "23:00:01", "23:59:59"} <= times
    assert {"74.995", "75.0", "75.000", "75.005"} <= {row["final_amount"] for row in rows}
    assert {"", "7", "7.0", "2000000000.0"} <= {row["user_id"] for row in rows}
    stores = Counter(row["store_id"] for row in rows)
    assert stores["99"] == 2
    natural = sum(stores[str(store)] for store in range(1, 11))
    assert stores["1"] > 0.4 * (natural - stores["6"])
    clients = {row["user_id"] for row in rows if row["store_id"] == "11"}
    assert clients == {"3.0", "7.0", "2000000000.0"}


def test_hard_mode_has_equal_rows_on_both_sides_of_any_cut(
    hard: tuple[Path, GeneratedFiles],
) -> None:
    """Check the twin at both ends, and that the run is in the middle and half of the file."""
    out, _ = hard
    plan = plan_days(scale=SCALE, seed=SEED, hard=True)
    edges = month_edges(plan, MONTHS.index((2024, 9)))
    natural = int(plan.transactions[slice(*_bounds((2024, 9)))].sum())
    assert edges.copies == 2 * natural
    for table in ("transactions", "transaction_items"):
        lines = (out / f"{table}_202409.csv").read_text().splitlines()[1:]
        assert lines[0] == lines[-1]
        assert edges.middle is not None
        run = [i for i, line in enumerate(lines) if line.startswith(edges.middle.transaction_id)]
        assert len(run) == edges.copies
        assert run == list(range(run[0], run[0] + len(run)))
        assert len(set(lines[run[0] : run[-1] + 1])) == 1
        assert run[0] < len(lines) // 2 < run[-1]
    assert RUN not in EDGES


def _bounds(month: tuple[int, int]) -> tuple[int, int]:
    days = days_of_month(MONTHS.index(month))
    return days.start, days.stop


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), 101])
def test_a_scale_out_of_range_is_refused(scale: float, tmp_path: Path) -> None:
    """Give bad scales: one clear line, and nothing is written."""
    with pytest.raises(ValueError, match=r"scale .* is out of range: give one above 0"):
        generate(tmp_path / "new", scale=scale, seed=1)
    assert not (tmp_path / "new").exists()


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    """Point the generator at a directory with a file in it, and at a file."""
    (tmp_path / "mine.txt").write_text("precious")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(ValueError, match="is not an empty directory: name a new one"):
            generate(out, scale=SCALE, seed=1)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_failed_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the drawing of a day fail: the files of that month are neither complete nor left over."""

    def fail(*_: object) -> None:
        raise RuntimeError("no more numbers")

    monkeypatch.setattr("holdfast.apps.coffee.generator.draw_day", fail)
    with pytest.raises(RuntimeError, match="no more numbers"):
        generate(tmp_path / "out", scale=SCALE, seed=1)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"menu_items.csv", "stores.csv", "payment_methods.csv", "vouchers.csv"}
