"""One chat completion over HTTP, as the examples and the demo ask for it.

PROVIDER_URL, PROVIDER_KEY and PROVIDER_MODEL name a real provider; without them it is the bundled
one on port 8400.
"""

from __future__ import annotations

import json
import os
import urllib.request
from dataclasses import dataclass, field
from typing import Any

MODEL = os.environ.get("PROVIDER_MODEL", "m-1")
PROMPT = "Say in one word whether this review is praise, blame or unclear."
RETURNS = "label string, tokens_in int, tokens_out int"


def _url() -> str:
    return os.environ.get("PROVIDER_URL", "http://127.0.0.1:8400")


def _key() -> str:
    return os.environ.get("PROVIDER_KEY", "")


@dataclass(frozen=True)
class Client:
    """Made once per Python worker (`setup=`): the place for addresses and secrets."""

    url: str = field(default_factory=_url)
    key: str = field(default_factory=_key, repr=False)

    def complete(self, text: str, idempotency_key: str = "") -> dict[str, Any]:
        """Make one call, which costs money."""
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}]
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        body = json.dumps({"model": MODEL, "messages": messages}).encode()
        request = urllib.request.Request(  # noqa: S310 - the URL is the user's own
            f"{self.url}/v1/chat/completions", body, headers
        )
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - as above
            return dict(json.load(reply))


def classify(row: Any, client: Client, idempotency_key: str) -> dict[str, Any]:
    """Classify the text of a row."""
    reply = client.complete(row.text, idempotency_key)
    return {
        "label": reply["choices"][0]["message"]["content"],
        "tokens_in": reply["usage"]["prompt_tokens"],
        "tokens_out": reply["usage"]["completion_tokens"],
    }


def price(answer: dict[str, Any]) -> float:
    """Return the dollars of one answer, by a price list in dollars per million tokens."""
    return float(answer["tokens_in"] * 0.15 + answer["tokens_out"] * 0.60) / 1e6
