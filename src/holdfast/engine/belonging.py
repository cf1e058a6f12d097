"""Which pipeline a state belongs to, and what may not become of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.engine.spec import PipelineSpec
from holdfast.errors import StateMismatch
from holdfast.store.contract import PipelineRule
from holdfast.store.rows import CLOSED_STATES, KeptPipeline, Run


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return which parts of a pipeline differ, in words; empty if none does."""
    altered = [f"{name} changed" for name in old if name in new and old[name] != new[name]]
    gone = [f"{name} was removed" for name in old if name not in new]
    added = [f"{name} was added" for name in new if name not in old]
    return ", ".join([*altered, *gone, *added])


def refuse_stranger(spec: PipelineSpec, state: str, *, alone: bool) -> PipelineRule:
    """Return the rule for a service of `spec`: it refuses a state of another pipeline, and a
    changed pipeline while a run that is not over, or another part, still goes by the old one.
    """

    def rule(kept: KeptPipeline | None, runs: Sequence[Run]) -> None:
        names = {run.pipeline for run in runs} | ({kept.name} if kept else set())
        if others := sorted(names - {spec.name}):
            raise StateMismatch(state=state, what=f"it belongs to {others[0]}, not to {spec.name}")
        for run in runs:
            changed = changes(run.fingerprint, spec.fingerprint)
            if changed and run.state not in CLOSED_STATES:
                what = f"{changed} since run {run.run_id} began, which is not over"
                raise StateMismatch(state=state, what=what)
        if kept and not alone and (changed := changes(kept.fingerprint, spec.fingerprint)):
            what = f"{changed} since other processes began to work here; end them first"
            raise StateMismatch(state=state, what=what)

    return rule
