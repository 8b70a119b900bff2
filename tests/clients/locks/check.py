"""What a history of locks, limiters and transactions must not show.

A history is a list of events, a dict each: what one client asked for, and what it
was told. `begin` and `end` are milliseconds of one clock, that of all clients: it was
asked for after `begin`, and answered before `end`. An error, or no answer, is the
outcome `unknown`: it may be done, once.

| kind | further fields | outcome |
|---|---|---|
| acquire | lock, token, ttl | got, refused, unknown |
| extend, release | lock, token, ttl (of extend) | done, gone, unknown |
| peek | lock, token (None: nobody's) | read, unknown |
| count | key, form (window, script), limit, window, n, left | counted, unknown |
| append | key, id | done, unknown |
| swap | key, id, over (what it was to replace) | done, refused, unknown |
| read | key, value (ids in their order; none: a miss) | read, unknown |
| write-two | key, n: to a first key, then a second, in one MULTI, by one client | done, unknown |
| fault | fault (kill, stop: of a backend; gateway-kill, gateway-stop), whom | back |
| read-two | key, second, first: read in this order; None: a miss | read, unknown |

A cache may miss what it has (docs/memcached.md says when), so a read that finds
nothing breaks no rule; what *changes* something that was there must not miss it.

What makes the checker a judge is that it knows less than the server: a lock is only
held against what its holder could know by its own clock.
"""

import collections
import itertools
import typing

# What a holder takes off for clocks that run at different rates: Redlock's formula.
DRIFT_SHARE = 0.01
DRIFT_MS = 2
# How long after its time a lock may still be seen.
OVERDUE_MS = 250


def valid_until(asked_ms, ttl_ms):
    """Until when the holder of a lock may rely on it, by its own clock alone: the
    server began to count after it was asked."""
    return asked_ms + ttl_ms - ttl_ms * DRIFT_SHARE - DRIFT_MS


class Claim:
    """From when until when a client may believe that it has a lock."""

    def __init__(self, acquired):
        self.lock, self.token = acquired["lock"], acquired["token"]
        self.asked, self.begin = acquired["begin"], acquired["end"]
        self.until = valid_until(acquired["begin"], acquired["ttl"])
        self.end = None
        # Answered while the lock was valid: it is not ours.
        self.lost = None

    def _stop(self, at):
        self.end = min(at, self.until if self.end is None else self.end)

    def hears(self, event):
        """What its owner did afterwards, in that order."""
        if event["kind"] == "extend":
            renewed = valid_until(event["begin"], event["ttl"])
            if event["outcome"] == "done":
                # Between the question and the answer it relies on what it had.
                if event["end"] > self.until:
                    self._stop(self.until)
                self.until = renewed
            elif event["outcome"] == "unknown":
                self.until = min(self.until, renewed)
        if event["outcome"] == "gone":
            if event["end"] <= self.until and self.lost is None:
                self.lost = event
            self._stop(event["begin"])
        if event["kind"] == "release":
            self._stop(event["begin"])

    @property
    def stop(self):
        return self.until if self.end is None else min(self.end, self.until)


def claims(history):
    """All claims, by lock, in the order in which they begin."""
    by_token, found = {}, collections.defaultdict(list)
    for event in sorted(history, key=lambda event: event["begin"]):
        if event["kind"] == "acquire" and event["outcome"] == "got":
            claim = by_token[event["token"]] = Claim(event)
            found[claim.lock].append(claim)
        elif event["kind"] in ("extend", "release") and event["token"] in by_token:
            by_token[event["token"]].hears(event)
    return {lock: sorted(held, key=lambda claim: claim.begin) for lock, held in found.items()}


def of(event, text):
    return Broken(text, event["begin"], event["end"])


def of_kind(history, *kinds):
    return [event for event in history if event["kind"] in kinds]


def grouped(events, field):
    found = collections.defaultdict(list)
    for event in events:
        found[event[field]].append(event)
    return found


class Broken(typing.NamedTuple):
    """What breaks a rule, and between which times what was there must have gone."""

    text: str
    begin: float
    end: float


# Each rule gives what breaks it.


def alone(history):
    """Two clients never believe that they have one lock at the same time."""
    for lock, held in claims(history).items():
        last = None
        for claim in held:
            if last and claim.begin < last.stop and claim.begin < claim.stop:
                yield Broken(
                    f"{lock} has two owners: {last.token} from {last.begin:.1f} to {last.stop:.1f}, "
                    f"{claim.token} from {claim.begin:.1f} to {claim.stop:.1f}",
                    last.asked,
                    claim.begin,
                )
            if last is None or claim.stop > last.stop:
                last = claim


def kept(history):
    """A lock is not taken from its owner while it is valid."""
    for held in claims(history).values():
        for claim in held:
            if claim.lost:
                yield Broken(
                    f"{claim.lock} of {claim.token} is gone at {claim.lost['end']:.1f}, "
                    f"and was valid until {claim.until:.1f}",
                    claim.asked,
                    claim.lost["end"],
                )


def known(history):
    """What a lock holds is the token of somebody who asked for it, and was not refused."""
    asked = {event["token"]: event for event in of_kind(history, "acquire")}
    for peek in of_kind(history, "peek"):
        if peek["outcome"] != "read" or peek["token"] is None:
            continue
        acquire = asked.get(peek["token"])
        if acquire is None or acquire["lock"] != peek["lock"] or acquire["begin"] > peek["end"]:
            yield of(peek, f"{peek['lock']} holds {peek['token']}, which nobody asked for")
        elif acquire["outcome"] == "refused":
            yield of(peek, f"{peek['lock']} holds {peek['token']}, which was refused")


def released(history):
    """What was released is not seen again."""
    done = {
        event["token"]: event["end"]
        for event in of_kind(history, "release")
        if event["outcome"] == "done"
    }
    for peek in of_kind(history, "peek"):
        if peek["outcome"] == "read" and done.get(peek["token"], peek["begin"]) < peek["begin"]:
            yield of(peek, f"{peek['lock']} holds {peek['token']}, which was released before")


def expires(history):
    """A lock that nobody extends ends by itself: whoever holds one and dies blocks the
    others for as long as was said, and no longer."""
    last, unsure = {}, set()
    for event in of_kind(history, "acquire", "extend"):
        if event["outcome"] in ("got", "done"):
            end = event["end"] + event["ttl"]
            last[event["token"]] = max(end, last.get(event["token"], 0))
        elif event["outcome"] == "unknown":
            unsure.add(event["token"])
    for peek in of_kind(history, "peek"):
        if peek["outcome"] != "read" or peek["token"] in unsure:
            continue
        token = peek["token"]
        if peek["begin"] > last.get(token, peek["begin"]) + OVERDUE_MS:
            text = f"{peek['lock']} holds {token} at {peek['begin']:.1f}, whose time was over at {last[token]:.1f}"
            yield of(peek, text)


def is_later(second, first):
    """Whether a script's count may be of a window that began when another's had ended."""
    earliest_end = first["begin"] + first["left"]
    latest_begin = second["end"] + second["left"] - second["window"]
    return latest_begin >= earliest_end - DRIFT_MS


def once(history):
    """A limiter gives each number once. A key of the form `window` counts one window,
    which its name says. One of the form `script` counts for `window` ms from its first
    number on, and `left` says how much of that is left: the same number again has to
    be of a later window."""
    for key, counts in grouped(of_kind(history, "count"), "key").items():
        known = [event for event in counts if event["outcome"] == "counted"]
        for number, same in grouped(known, "n").items():
            same.sort(key=lambda event: event["begin"])
            for first, second in itertools.pairwise(same):
                # Who asked first may have been served later.
                if first["form"] == "script" and (is_later(second, first) or is_later(first, second)):
                    continue
                text = f"{key} counts {number} twice in a window: until {first['end']:.1f} and {second['end']:.1f}"
                yield Broken(text, first["begin"], max(first["end"], second["end"]))


def through(history):
    """No more pass a limiter in a window than may."""
    windows = [event for event in of_kind(history, "count") if event["form"] == "window"]
    for key, counts in grouped(windows, "key").items():
        passed = sum(1 for event in counts if event["outcome"] == "counted" and event["n"] <= event["limit"])
        if passed > counts[0]["limit"]:
            text = f"{key} has let {passed} pass, of {counts[0]['limit']} that may"
            yield Broken(text, min(event["begin"] for event in counts), max(event["end"] for event in counts))


def exact(history):
    """A limiter counts nobody twice: no number is higher than there were callers."""
    windows = [event for event in of_kind(history, "count") if event["form"] == "window"]
    for key, counts in grouped(windows, "key").items():
        for event in counts:
            callers = sum(1 for other in counts if other["begin"] <= event["end"])
            if event["outcome"] == "counted" and event["n"] > callers:
                yield of(event, f"{key} counts {event['n']}, of {callers} callers")


def bounded(history):
    """What a limiter by script says of its window is in that window."""
    for event in of_kind(history, "count"):
        if event["form"] == "script" and event["outcome"] == "counted":
            if not 0 <= event["left"] <= event["window"]:
                yield of(event, f"{event['key']} has {event['left']} ms left, of {event['window']}")


def reads_of(history, kind):
    """For each key that `kind` writes: its writes by id, and its reads that have an answer."""
    writes = grouped(of_kind(history, kind), "key")
    reads = grouped([event for event in of_kind(history, "read") if event["outcome"] == "read"], "key")
    for key in writes:
        yield key, {event["id"]: event for event in writes[key]}, sorted(reads[key], key=lambda event: event["begin"])


def whole(history):
    """A transaction of one key is seen whole or not at all: each appends its id twice."""
    for key, _, reads in reads_of(history, "append"):
        for read in reads:
            ids = read["value"] or []
            if ids[0::2] != ids[1::2] or len(set(ids)) * 2 != len(ids):
                yield of(read, f"{key} reads {' '.join(ids)}: a transaction of which a part is seen, or twice")


def listed(history):
    """What was appended stays, in its order: each read is a prefix of the next, and has
    all that was acknowledged before it began. A miss is no value."""
    for key, appends, reads in reads_of(history, "append"):
        reads = [read for read in reads if read["value"]]
        values = [read["value"] for read in reads]
        begun = min(append["begin"] for append in appends.values())
        longest = max(values, key=len, default=[])
        for read, value in zip(reads, values):
            since = Broken("", begun, read["end"])
            if longest[: len(value)] != value:
                text = f"{key} reads {' '.join(value[:2])}… at {read['end']:.1f}, and another time {' '.join(longest[:2])}…"
                yield since._replace(text=text)
            lacks = [
                append["id"]
                for append in appends.values()
                if append["outcome"] == "done" and append["end"] < read["begin"] and append["id"] not in value
            ]
            if lacks:
                yield since._replace(text=f"{key} reads without {' '.join(lacks[:3])} of {len(lacks)} that were done before")
            unknown = [name for name in value if name not in appends or appends[name]["begin"] > read["end"]]
            if unknown:
                yield of(read, f"{key} reads {unknown[0]}, which nobody appended")
        for first, second in itertools.pairwise(sorted(zip(reads, values), key=lambda one: one[0]["end"])):
            if first[0]["end"] < second[0]["begin"] and len(second[1]) < len(first[1]):
                yield Broken(f"{key} reads less than before", begun, second[0]["end"])


def watched(history):
    """Of those that watched the same value, one replaces it."""
    for key, swaps, _ in reads_of(history, "swap"):
        done = [event for event in swaps.values() if event["outcome"] == "done"]
        for over, same in grouped(done, "over").items():
            if len(same) > 1:
                text = f"{key}: {over} is replaced by {' and by '.join(event['id'] for event in same)}"
                yield Broken(text, min(event["begin"] for event in same), max(event["end"] for event in same))


def refused(history):
    """What a transaction says that it did not do is never seen."""
    for key, swaps, reads in reads_of(history, "swap"):
        seen = {read["value"][0] for read in reads if read["value"]} | {event["over"] for event in swaps.values()}
        for name in seen - {None}:
            if name not in swaps:
                yield Broken(f"{key} holds {name}, which nobody wrote", 0, 0)
            elif swaps[name]["outcome"] == "refused":
                yield of(swaps[name], f"{key} holds {name}, whose EXEC said that it was not done")


def ordered(history):
    """A transaction of several keys is executed in its order, and what is acknowledged
    is there: who reads the second key and then the first finds the first no older.
    Misses of one of them say nothing."""
    writes = grouped(of_kind(history, "write-two"), "key")
    for read in of_kind(history, "read-two"):
        if read["outcome"] != "read" or not (read.get("first") and read.get("second")):
            continue
        first, second = read["first"], read["second"]
        if first < second:
            yield of(read, f"{read['key']}: the second key has {second}, and the first one, read later, {first}")
        begun = [event["n"] for event in writes[read["key"]] if event["begin"] <= read["end"]]
        if max(first, second) > max(begun, default=0):
            yield of(read, f"{read['key']} holds {max(first, second)}, which nobody wrote")
        done = [
            event["n"]
            for event in writes[read["key"]]
            if event["outcome"] == "done" and event["end"] < read["begin"]
        ]
        if min(first, second) < max(done, default=0):
            yield of(read, f"{read['key']} reads {first} and {second}, after {max(done)} was done")


RULES = {
    rule.__name__: rule
    for rule in (
        alone, kept, known, released, expires, once, through, exact, bounded, whole, listed, watched,
        refused, ordered,
    )
}  # fmt: skip
# What rests on a key that is not lost. Survivors that disagree on one while a backend is
# away count as nothing, and whoever changes it begins anew.
OF_WHAT_STAYS = ("alone", "kept", "once", "through", "listed", "watched")


def check(history, rules=None):
    """What is wrong: pairs of a rule's name and what breaks it."""
    return [(name, broken) for name in rules or RULES for broken in RULES[name](history)]


def is_void(history, name, broken):
    """Whether a cell of three copies does not promise it: a key may have been lost while a
    backend was away, which it is from when it is killed or stopped until it is back."""
    return name in OF_WHAT_STAYS and any(
        event["begin"] <= broken.end and broken.begin <= event["end"]
        for event in of_kind(history, "fault")
        if event["fault"] in ("kill", "stop")
    )
