"""The table of the proof, for the terminal and for docs/proof-paid.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.proof.books import Verdict

_HEAD = """# Proof: what a witness saw

Made by `make proof-paid` (`tests/proof/`), which writes this page and exits 0 only if every line
holds. A witness, in a process of its own that shares no code with Holdfast, plays the provider: it
answers over HTTP, gives another text at each call, and fsyncs a line before it answers. Its log is
the only source of the call counts. Each case is the same code, once as plain Spark (a UDF or
`mapInArrow`) and once with `pay_once`.

* **plain**, **pay_once**: calls that the witness counted. A slot is a distinct key.
* **bought again**: calls that no policy asked for. It must be 0.
* **asked again**: calls that the policy chose to repeat (`unknown="retry"` after a crash or a lost
  reply; 429 and 500), with the same idempotency key. They are listed below the table.
* **in doubt**: slots whose outcome was unknown at some time. After SIGKILL those are the calls on
  their way and the intents ahead of them, at most `max_in_flight + intent_ahead` per task.
* **outcome**: how the jobs ended; every answer was compared, and was the same for all who asked.
"""


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| case | rows | slots | plain | pay_once | bought again | asked again | in doubt"
        " | outcome: plain | outcome: pay_once |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --- | --- |",
    ]
    for v in verdicts:
        asked = sum(v.asked_again.values())
        lines.append(
            f"| {v.plan.case} | {v.plan.rows} | {len(v.plan.slots)} | {v.plain_calls} | {v.calls}"
            f" | {v.bought_again} | {asked} | {v.in_doubt} | {v.plain_outcome} | {v.outcome} |"
        )
    return "\n".join(lines)


def page(verdicts: Sequence[Verdict]) -> str:
    """Return the page of the docs."""
    listed = [
        f"* {v.plan.case}: {', '.join(_times(key, v) for key in sorted(v.asked_again, key=_order))}"
        for v in verdicts
        if v.asked_again
    ]
    return "\n".join([_HEAD, table(verdicts), "", "## Asked again, by key", "", *listed, ""])


def _times(key: str, verdict: Verdict) -> str:
    more = verdict.asked_again[key]
    return key if more == 1 else f"{key} ({more} times)"


def _order(key: str) -> tuple[int, str]:
    return (len(key), key)
