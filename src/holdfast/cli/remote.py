"""What the verbs that speak to a server share: who we are to it, and how to stop."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from holdfast._base.tell import tell
from holdfast.cli.exits import STOPPED
from holdfast.client.client import Client
from holdfast.errors import PathUnknown, RunStopped, TokenRefused

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Server:
    """A server as the command line names it."""

    url: str
    token_file: Path
    ca_file: Path | None = None
    plain_http: bool = False

    def words(self) -> str:
        """Return the options that name it, for the next command."""
        parts = ["--url", self.url, "--token-file", str(self.token_file)]
        if self.ca_file is not None:
            parts += ["--ca-file", str(self.ca_file)]
        return shlex.join(parts + (["--plain-http"] if self.plain_http else []))


def _tell(text: str) -> None:
    tell(f"{text}\n")


@contextmanager
def connected(server: Server) -> Iterator[Client]:
    """Yield a client that Ctrl-C and SIGTERM stop: once when chunks under way are sent, twice now.

    Nothing is lost either way: whatever was acknowledged is on the server.
    """
    with Client(
        server.url,
        token_file=server.token_file,
        ca_file=server.ca_file,
        plain_http=server.plain_http,
        on_wait=_tell,
    ) as client:

        def take(number: int, frame: FrameType | None) -> None:
            del number, frame
            if client.is_stopped:
                os._exit(STOPPED)
            client.stop()
            # Out of whatever waits for the server: no transaction of ours can be torn.
            raise RunStopped(what="stopped", resume="")

        before = {number: signal.signal(number, take) for number in _SIGNALS}
        try:
            yield client
        except TokenRefused as error:
            what = f"{server.url} refuses the token in {server.token_file}"
            remedy = "Ask its operator for one that stands (holdfast client add, or rotate)."
            raise TokenRefused(what=what, remedy=remedy) from error
        except PathUnknown as error:
            path = urlsplit(server.url).path.rstrip("/")
            if not path:
                raise
            what = f"{server.url} has no API of Holdfast's"
            remedy = f"Give the address without {path}."
            raise PathUnknown(what=what, remedy=remedy) from error
        except RunStopped as error:
            resume = f"Go on: {shlex.join(['holdfast', *sys.argv[1:]])}"
            raise RunStopped(what=error.what, resume=resume) from error
        finally:
            for number, known in before.items():
                signal.signal(number, known)


def on_terminal() -> bool:
    """Tell whether somebody watches standard error."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
