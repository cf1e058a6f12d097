"""What a broker's own output says about why it does not serve. Pure."""

from __future__ import annotations

import re

from holdfast.errors import LogNotStarted

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_KEYS = re.compile(r"(AWSAccessKeyId|Signature|Credential)=[^&\s\"]+")
_ANOTHER_PORT = "End whoever listens there, give another port, or none."
_CASES: tuple[tuple[str, str, str], ...] = (
    # what is looked for, what it means, what to do
    (
        r"FeatureNotEnabled \{ feature: \"(\w+)\"",
        "this binary was built without the storage {0}",
        "Build it with that feature: make broker.",
    ),
    (r"NoSuchBucket|bucket does not exist", "there is no such bucket", "Make it."),
    (
        r"PermissionDenied|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|status: 403",
        "S3 refuses",
        "Correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the rights of that key.",
    ),
    (
        r"kind: Connect|ConnectionRefused|dns error|status: 301|PermanentRedirect",
        "S3 does not answer at this endpoint",
        "Correct s3_endpoint and s3_region; an endpoint that is no AWS is used path-style.",
    ),
    (
        r"Unable to open connection|unable to open database|readonly database",
        "its file cannot be opened",
        "Give a directory that exists and may be written.",
    ),
    (r"AddrInUse|Address already in use", "its port is in use", _ANOTHER_PORT),
    (
        r"AddrNotAvailable|Cannot assign requested address|failed to lookup address",
        "its host is no address of this machine",
        "Give one that other machines reach this one by, or none.",
    ),
)


def port_taken(address: str, path: str) -> LogNotStarted:
    """Return the error of a broker whose port somebody else has."""
    return LogNotStarted(what=f"{address} is in use", remedy=_ANOTHER_PORT, output=path)


def not_spawned(error: Exception, path: str) -> LogNotStarted:
    """Return the error of a broker that the operating system does not let us start."""
    remedy = "See to that, then start it again."
    return LogNotStarted(what=f"it cannot be started: {error}", remedy=remedy, output=path)


def diagnose(output: str, path: str, otherwise: str = "it did not answer in time") -> LogNotStarted:
    """Return the error that a broker's output amounts to. Nothing secret is repeated."""
    text = _KEYS.sub(r"\1=...", _COLOURS.sub("", output))
    for pattern, what, remedy in _CASES:
        if found := re.search(pattern, text):
            return LogNotStarted(what=what.format(*found.groups()), remedy=remedy, output=path)
    errors = [line for line in text.splitlines() if "error" in line.lower()]
    what = errors[-1][:200] if errors else otherwise
    return LogNotStarted(what=what, remedy="Look at its output.", output=path)
