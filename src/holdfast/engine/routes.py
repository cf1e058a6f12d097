"""Which log the references of each segment travel on. Pure: nothing is opened here.

A segment's topic is where its references are, and the store has all of them whatever is decided
here (`holdfast.log.relayed`): so a route may change between two starts.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from holdfast.config import BATCH_SIZE, FETCH_TIMEOUT_MS, Config
from holdfast.engine.spec import PipelineSpec, SegmentSpec
from holdfast.errors import UsageInvalid
from holdfast.log.relayed import Route

_STARTED = "tansu+"
"""What the schemes of brokers begin with that are child processes of ours."""


def routes_of(spec: PipelineSpec, config: Config) -> dict[int, Route]:
    """Return the route of every segment whose references do not stay on the store's own log.

    Raises:
        UsageInvalid: a port for a broker that is not ours to start, or one broker started twice.
    """
    routes: dict[int, Route] = {}
    for segment in spec.segments:
        options = segment.options
        url = config.log if options.log is None else options.log
        url = url if options.port is None else _with_port(url, options.port, segment)
        if url:
            size, wait_ms = options.batch_size, options.fetch_timeout_ms
            routes[segment.number] = Route(url, size or BATCH_SIZE, wait_ms or FETCH_TIMEOUT_MS)
    _refuse_twice_started(routes)
    return routes


def _with_port(url: str, port: int, segment: SegmentSpec) -> str:
    place, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    stage = segment.tables[0]
    if not place.startswith(_STARTED):
        what = f"stage {stage} has port = {port}, but its log is {url or 'the store itself'}"
        raise UsageInvalid(what=what, remedy="Give a port with a tansu+...:// log only.")
    if options.setdefault("port", str(port)) != str(port):
        what = f"stage {stage} has port = {port}, and {options['port']} in the URL of its log"
        raise UsageInvalid(what=what, remedy="Give one of them.")
    return f"{place}?{urlencode(options)}"


def _refuse_twice_started(routes: dict[int, Route]) -> None:
    """One broker per place: a second on the same file or bucket would not know of the first."""
    places: dict[str, str] = {}
    for route in routes.values():
        place = route.log.partition("?")[0]
        if place.startswith(_STARTED) and places.setdefault(place, route.log) != route.log:
            what = f"the broker of {place} is to be started as {places[place]} and as {route.log}"
            raise UsageInvalid(what=what, remedy="Give it the same options everywhere.")
