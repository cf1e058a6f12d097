"""What delivery takes of an external producer, acks again, or fails the run for. Pure.

| the message | then |
| --- | --- |
| is new, and fits what is known | taken |
| is there already, the same | acked again |
| is there already, with another checksum, total or list of series | the run fails, both named |
| is of a series that the header does not name, or a header without a series that came | fails |

A producer that contradicts itself cannot be believed in either version, so its run is not guessed
at: it fails, and says why.
"""

from __future__ import annotations

from holdfast._base.intervals import Intervals
from holdfast.errors import ResultConflict, RunGone
from holdfast.store.result_rows import ExternalFacts, ExternalPiece, SeriesDecl, SeriesProgress
from holdfast.store.rows import CLOSED_STATES


def accept_header(header: tuple[SeriesDecl, ...], facts: ExternalFacts) -> bool:
    """Say whether to record a header (True) or to ack it again (False).

    Raises:
        ResultConflict: it contradicts what is known.
        RunGone: the run is over.
    """
    _check_open(facts)
    names = [one.series for one in header]
    if facts.header is not None:
        if facts.header != header:
            known = ", ".join(one.series for one in facts.header)
            raise _conflict(facts, "the header", "came with other series", known, ", ".join(names))
        return False
    if len(set(names)) != len(names):
        raise _conflict(facts, "the header", "names a series twice", "", ", ".join(names))
    for one in facts.progress:
        if one.series not in names:
            what = "lacks a series that came"
            raise _conflict(facts, "the header", what, one.series, ", ".join(names))
    return True


def accept_piece(piece: ExternalPiece, facts: ExternalFacts) -> bool:
    """Say whether to bind a piece (True) or to ack it again (False).

    Raises:
        ResultConflict: it contradicts what is known.
        RunGone: the run is over.
    """
    _check_open(facts)
    place = f"piece {piece.ordinal} of series {piece.series}"
    if facts.header is not None and piece.series not in {one.series for one in facts.header}:
        known = ", ".join(one.series for one in facts.header)
        raise _conflict(facts, place, "is of no series of the header", known, piece.series)
    progress = next((one for one in facts.progress if one.series == piece.series), None)
    if progress is not None and progress.total is not None and progress.total != piece.total:
        what = "came with another total"
        raise _conflict(facts, place, what, str(progress.total), str(piece.total))
    if facts.stored is not None:
        if facts.stored.checksum != piece.checksum:
            what = "came with other bytes"
            raise _conflict(facts, place, what, facts.stored.checksum, piece.checksum)
        return False
    return piece.ordinal > 0 or progress is None or progress.total is None


def is_whole(facts: ExternalFacts) -> bool:
    """Tell whether the header is there, and 1..total without a gap in every series it names."""
    return facts.header is not None and all(_is_complete(one) for one in facts.progress)


def _is_complete(one: SeriesProgress) -> bool:
    return one.total is not None and one.received == Intervals.first(one.total)


def lacks(facts: ExternalFacts) -> list[str]:
    """Return what is missing of an external run, in words."""
    found = [] if facts.header is not None else ["the header"]
    for one in facts.progress:
        if one.total is None:
            found.append(f"all of series {one.series}")
        elif not _is_complete(one):
            missing = Intervals.first(one.total).minus(one.received)
            found.append(f"pieces {missing} of series {one.series}")
    return found


def _check_open(facts: ExternalFacts) -> None:
    if facts.state in CLOSED_STATES:
        raise RunGone(run=facts.run_id, state=facts.state)


def _conflict(facts: ExternalFacts, what: str, how: str, stored: str, sent: str) -> ResultConflict:
    return ResultConflict(run=facts.run_id, what=what, how=how, stored=stored, sent=sent)
