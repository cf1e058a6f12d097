"""Signatures of notices, checked by code that shares nothing with them."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
from pathlib import Path

import pytest
from tests.unit.plain_runs import files_below

from holdfast.delivery.signing import is_signed, secret_path, sign, signing_secret
from holdfast.errors import UsageInvalid
from holdfast.testing.expect import run_threads


def test_the_signature_is_what_the_page_says() -> None:
    """Written again from docs/delivery.md, in Python and with openssl."""
    secret, body = b"s" * 64, b'{"id":"x"}'
    wanted = hmac.new(secret, b"1700000000." + body, hashlib.sha256).hexdigest()
    assert sign(secret, body, 1700000000) == f"t=1700000000,v1={wanted}"
    asked = ["openssl", "dgst", "-sha256", "-hmac", secret.decode(), "-r"]
    said = subprocess.run(asked, input=b"1700000000." + body, capture_output=True, check=True)
    assert said.stdout.split()[0].decode() == wanted


@pytest.mark.parametrize(
    "signature",
    ["", "t=1", "v1=" + "0" * 64, "t=1,v1=" + "0" * 64, "t=1,v1=" + "0" * 63, "t=x,v1=" + "0" * 64],
)
def test_what_is_not_signed_is_refused(signature: str) -> None:
    assert not is_signed(b"secret", b"body", signature)


def test_each_part_of_a_signature_counts() -> None:
    good = sign(b"secret", b"body", 5)
    assert is_signed(b"secret", b"body", good)
    assert not is_signed(b"other", b"body", good)
    assert not is_signed(b"secret", b"bodY", good)
    assert not is_signed(b"secret", b"body", good.replace("t=5", "t=6"))


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    found: list[bytes] = []
    run_threads([lambda: found.append(signing_secret(tmp_path / "s", "acme")) for _ in range(8)])
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert signing_secret(tmp_path / "s", "other") != found[0]
    path = secret_path(tmp_path / "s", "acme")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(p.name for p in path.parent.iterdir()) == ["webhook-acme", "webhook-other"]
    assert len(files_below(tmp_path)) == 2


@pytest.mark.parametrize("client", ["", "../x", "a/b", "a" * 65, "a.b", "\0"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, client: str) -> None:
    with pytest.raises(UsageInvalid):
        signing_secret(tmp_path, client)
    assert list(tmp_path.iterdir()) == []
