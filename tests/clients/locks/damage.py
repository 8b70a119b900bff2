"""Damages a good history, to see that the checker would have noticed.

Each damage is what a server that breaks a rule would have made clients note. Gives
nothing where the history has nothing to damage in this way.
"""

import check


def altered(history, event, **fields):
    return [one | fields if one is event else one for one in history]


def first(history, *conditions):
    return next((event for event in history if all(condition(event) for condition in conditions)), None)


def is_(kind, outcome):
    return lambda event: event["kind"] == kind and event["outcome"] == outcome


def second_owner(history):
    """Somebody who was refused while a lock was valid was not."""
    for lock, held in check.claims(history).items():
        for claim in held:
            refused = first(
                history,
                is_("acquire", "refused"),
                lambda event: event["lock"] == lock and claim.begin < event["end"] < claim.stop - 1,
                lambda event: event["end"] + 1 < check.valid_until(event["begin"], event["ttl"]),
            )
            if refused:
                return altered(history, refused, outcome="got"), "alone"


def lost_lock(history):
    """A release in time did not find the lock."""
    got = {event["token"]: event for event in history if is_("acquire", "got")(event)}
    extended = {event["token"] for event in history if event["kind"] == "extend"}
    release = first(
        history,
        is_("release", "done"),
        lambda event: event["token"] not in extended,
        lambda event: event["end"] < check.valid_until(got[event["token"]]["begin"], got[event["token"]]["ttl"]),
    )
    return release and (altered(history, release, outcome="gone"), "kept")


def same_number(form):
    def damage(history):
        """Who came second is told that it is the first."""
        event = first(
            history,
            is_("count", "counted"),
            lambda event: event["form"] == form and event["n"] == 2,
            lambda event: any(
                other["kind"] == "count" and other["key"] == event["key"] and other.get("n") == 1
                and not (form == "script" and (check.is_later(other, event) or check.is_later(event, other)))
                for other in history
            ),
        )  # fmt: skip
        return event and (altered(history, event, n=1), "once")

    return damage


def counted_twice(history):
    event = first(history, is_("count", "counted"), lambda event: event["form"] == "window")
    return event and (altered(history, event, n=event["n"] + 1000), "exact")


def half_a_transaction(history):
    lists = {event["key"] for event in history if event["kind"] == "append"}
    read = first(history, is_("read", "read"), lambda event: event["key"] in lists and event["value"])
    return read and (altered(history, read, value=read["value"][:-1]), "whole")


def lost_append(history):
    """A read that began after a transaction was done is without it."""
    for append in history:
        if is_("append", "done")(append):
            read = first(
                history,
                is_("read", "read"),
                lambda event: event["key"] == append["key"] and append["end"] < event["begin"],
                lambda event: len(event["value"]) > 2,
            )
            if read:
                value = [name for name in read["value"] if name != append["id"]]
                return altered(history, read, value=value), "listed"


def refused_write(history):
    read = first(
        history,
        is_("read", "read"),
        lambda event: event["key"].startswith("swap") and event["value"],
    )
    swap = read and first(history, lambda event: event["kind"] == "swap" and event["id"] == read["value"][0])
    return swap and (altered(history, swap, outcome="refused"), "refused")


def lost_second(history):
    read = first(history, is_("read-two", "read"), lambda event: (event["second"] or 0) > 1 and event["first"])
    return read and (altered(history, read, first=read["second"] - 1), "ordered")


def seen_after_release(history):
    release = first(history, is_("release", "done"))
    peek = release and first(
        history,
        is_("peek", "read"),
        lambda event: event["lock"] == release["lock"] and event["begin"] > release["end"],
    )
    return peek and (altered(history, peek, token=release["token"]), "released")


DAMAGES = {
    "second owner": second_owner,
    "lost lock": lost_lock,
    "a number twice, by INCR": same_number("window"),
    "a number twice, by script": same_number("script"),
    "counted twice": counted_twice,
    "half a transaction": half_a_transaction,
    "a lost transaction": lost_append,
    "a refused write": refused_write,
    "a lost second key": lost_second,
    "a released lock": seen_after_release,
}


def unnoticed(history):
    """Which damages the checker does not notice, or cannot be done to this history."""
    history = sorted(history, key=lambda event: event["begin"])
    for name, damage in DAMAGES.items():
        done = damage(history)
        if not done:
            yield f"{name}: there was nothing to damage"
            continue
        damaged, rule = done
        if not check.check(damaged, [rule]):
            yield f"{name}: not noticed by {rule}"
