"""Every error Holdfast raises, in one tree with stable codes.

    HoldfastError
    +-- CallerError                  the call, the pipeline or the command line is wrong
    |   +-- PipelineInvalid          PIPELINE_INVALID
    |   +-- UsageInvalid             USAGE_INVALID
    |   +-- StateMismatch            STATE_MISMATCH
    |   +-- ChunkConflict            CHUNK_CONFLICT
    |   +-- EndConflict              END_CONFLICT
    |   +-- ResultConflict           RESULT_CONFLICT
    |   +-- RunGone                  RUN_GONE
    |   +-- RunStopped               RUN_STOPPED
    |   +-- TokenRefused             TOKEN_REFUSED
    |   +-- PathUnknown              PATH_UNKNOWN
    |   +-- RunUnknown               RUN_UNKNOWN
    |   +-- PieceUnknown             PIECE_UNKNOWN
    |   +-- RunConflict              RUN_CONFLICT
    |   +-- RunClosed                RUN_CLOSED
    |   +-- ChecksumWrong            CHECKSUM_WRONG
    |   +-- FormatRefused            FORMAT_REFUSED
    |   +-- DocumentRefused          DOCUMENT_REFUSED
    |   +-- BodyTooLarge             BODY_TOO_LARGE
    |   +-- UploadSlow               UPLOAD_SLOW
    |   +-- QuotaReached             QUOTA_REACHED
    |   +-- BacklogFull              BACKLOG_FULL
    |   +-- StageFailed              STAGE_FAILED
    |   +-- StageInvalid             STAGE_INVALID
    |   +-- StepChanged              STEP_CHANGED
    |   +-- KeyInvalid               KEY_INVALID
    |   +-- CallInputChanged         CALL_INPUT_CHANGED
    |   +-- BudgetSpent              BUDGET_SPENT
    |   +-- QueueMismatch            QUEUE_MISMATCH
    |   +-- ShardsMismatch           SHARDS_MISMATCH
    |   +-- ServerRefused            SERVER_REFUSED
    |   +-- RunOver                  RUN_OVER
    +-- EnvironmentFailed            the machine cannot do it now; run again when it can
    |   +-- StateBusy                STATE_BUSY
    |   +-- DiskFull                 DISK_FULL
    |   |   +-- DiskNearlyFull       DISK_NEARLY_FULL
    |   +-- StorageFailed            STORAGE_FAILED
    |   +-- UploadSwept              UPLOAD_SWEPT
    |   +-- JavaMissing              JAVA_MISSING
    |   +-- DependencyMissing        DEPENDENCY_MISSING
    |   +-- SparkLost                SPARK_LOST
    |   +-- SparkNotStarted          SPARK_NOT_STARTED
    |   +-- Fenced                   FENCED
    |   +-- ClusterNeedsSharedState  CLUSTER_NEEDS_SHARED_STATE
    |   +-- ProviderBusy             PROVIDER_BUSY
    |   +-- CallFailed               CALL_FAILED
    |   +-- FailureRecorded          FAILURE_RECORDED
    |   +-- LedgerInUse              LEDGER_IN_USE
    |   +-- LedgerMismatch           LEDGER_MISMATCH
    |   +-- LedgerUnreachable        LEDGER_UNREACHABLE
    |   +-- LedgerRefused            LEDGER_REFUSED
    |   +-- BrokerUnreachable        BROKER_UNREACHABLE
    |   +-- BrokerRefused            BROKER_REFUSED
    |   +-- MessageUnroutable        MESSAGE_UNROUTABLE
    |   +-- MessageReturned          MESSAGE_RETURNED
    |   +-- MessageNacked            MESSAGE_NACKED
    |   +-- LogUnreachable           LOG_UNREACHABLE
    |   +-- LogEmptied               LOG_EMPTIED
    |   +-- LogRefused               LOG_REFUSED
    |   +-- LogNotStarted            LOG_NOT_STARTED
    |   +-- ServerUnreachable        SERVER_UNREACHABLE
    |   +-- RunUnfinished            RUN_UNFINISHED
    +-- DataError                    the bytes are not what they should be
    |   +-- BadRows                  BAD_ROWS
    |   +-- HeaderWrong              HEADER_WRONG
    |   +-- InputChanged             INPUT_CHANGED
    |   +-- Damaged                  DAMAGED
    |   +-- RecordsDropped           RECORDS_DROPPED
    |   +-- StoreOlder               STORE_OLDER
    |   +-- StoreNewer               STORE_NEWER
    |   +-- SubmissionChanged        SUBMISSION_CHANGED
    +-- RunFailed                    RUN_FAILED
    +-- InvariantViolated            INVARIANT_VIOLATED: our own bug

A message says what happened, where, and what to do. Tests assert code and attributes, not prose.
Spark workers hand over only the text of a traceback, so `wire_text` puts an error into a line of
text and `from_text` finds it again.
"""

from __future__ import annotations

from holdfast.errors.broker import (
    BrokerRefused,
    BrokerUnreachable,
    MessageNacked,
    MessageReturned,
    MessageUnroutable,
    QueueMismatch,
    ShardsMismatch,
)
from holdfast.errors.caller import (
    ChunkConflict,
    EndConflict,
    PipelineInvalid,
    ResultConflict,
    RunGone,
    RunStopped,
    StageFailed,
    StageInvalid,
    StateMismatch,
    UsageInvalid,
)
from holdfast.errors.data import (
    BadRows,
    Damaged,
    HeaderWrong,
    InputChanged,
    RecordsDropped,
    StoreNewer,
    StoreOlder,
)
from holdfast.errors.door import (
    BacklogFull,
    BodyTooLarge,
    ChecksumWrong,
    DocumentRefused,
    FormatRefused,
    PathUnknown,
    PieceUnknown,
    QuotaReached,
    RunClosed,
    RunConflict,
    RunUnknown,
    TokenRefused,
    UploadSlow,
)
from holdfast.errors.environment import (
    ClusterNeedsSharedState,
    DependencyMissing,
    DiskFull,
    DiskNearlyFull,
    Fenced,
    JavaMissing,
    SparkLost,
    SparkNotStarted,
    StateBusy,
    StorageFailed,
    UploadSwept,
)
from holdfast.errors.logs import LogEmptied, LogNotStarted, LogRefused, LogUnreachable
from holdfast.errors.paid import (
    BudgetSpent,
    CallFailed,
    CallInputChanged,
    FailureRecorded,
    KeyInvalid,
    LedgerInUse,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnreachable,
    ProviderBusy,
    StepChanged,
)
from holdfast.errors.remote import (
    RunOver,
    RunUnfinished,
    ServerRefused,
    ServerUnreachable,
    SubmissionChanged,
)
from holdfast.errors.tree import (
    Blame,
    CallerError,
    DataError,
    EnvironmentFailed,
    HoldfastError,
    InvariantViolated,
    RunFailed,
    all_errors,
    from_text,
)

__all__ = [
    "BacklogFull",
    "BadRows",
    "Blame",
    "BodyTooLarge",
    "BrokerRefused",
    "BrokerUnreachable",
    "BudgetSpent",
    "CallFailed",
    "CallInputChanged",
    "CallerError",
    "ChecksumWrong",
    "ChunkConflict",
    "ClusterNeedsSharedState",
    "Damaged",
    "DataError",
    "DependencyMissing",
    "DiskFull",
    "DiskNearlyFull",
    "DocumentRefused",
    "EndConflict",
    "EnvironmentFailed",
    "FailureRecorded",
    "Fenced",
    "FormatRefused",
    "HeaderWrong",
    "HoldfastError",
    "InputChanged",
    "InvariantViolated",
    "JavaMissing",
    "KeyInvalid",
    "LedgerInUse",
    "LedgerMismatch",
    "LedgerRefused",
    "LedgerUnreachable",
    "LogEmptied",
    "LogNotStarted",
    "LogRefused",
    "LogUnreachable",
    "MessageNacked",
    "MessageReturned",
    "MessageUnroutable",
    "PathUnknown",
    "PieceUnknown",
    "PipelineInvalid",
    "ProviderBusy",
    "QueueMismatch",
    "QuotaReached",
    "RecordsDropped",
    "ResultConflict",
    "RunClosed",
    "RunConflict",
    "RunFailed",
    "RunGone",
    "RunOver",
    "RunStopped",
    "RunUnfinished",
    "RunUnknown",
    "ServerRefused",
    "ServerUnreachable",
    "ShardsMismatch",
    "SparkLost",
    "SparkNotStarted",
    "StageFailed",
    "StageInvalid",
    "StateBusy",
    "StateMismatch",
    "StepChanged",
    "StorageFailed",
    "StoreNewer",
    "StoreOlder",
    "SubmissionChanged",
    "TokenRefused",
    "UploadSlow",
    "UploadSwept",
    "UsageInvalid",
    "all_errors",
    "from_text",
]
