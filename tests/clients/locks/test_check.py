"""The checker itself: cases of histories, and a rule that is taken out is missed."""

import pathlib
import unittest

import check

NUMBERS = ("ttl", "limit", "window", "n", "left", "second", "first")


def event(line):
    times, kind, *fields = line.split()
    begin, end = times.split("..")
    found = {"begin": float(begin), "end": float(end), "kind": kind}
    for field in fields:
        name, _, text = field.partition("=")
        found[name] = float(text) if name in NUMBERS else text or None
        if name == "value":
            found[name] = text.split(",") if text else []
    return found


def cases():
    """Name, history, and the rules that it breaks."""
    name, history = None, []
    for line in pathlib.Path(__file__).with_name("histories.txt").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "case":
            name, history = rest, []
        elif word == "expect":
            yield name, history, set(rest.split()) - {"nothing"}
        elif line and not line.startswith("#"):
            history.append(event(line))


class Cases(unittest.TestCase):
    def test_each_breaks_what_it_says(self):
        count = 0
        for name, history, expected in cases():
            with self.subTest(name):
                self.assertEqual({rule for rule, _ in check.check(history)}, expected)
            count += 1
        self.assertGreater(count, 40)

    def test_each_rule_is_broken_by_a_case(self):
        broken = set().union(*(expected for _, _, expected in cases()))
        self.assertEqual(broken, set(check.RULES))

    def test_the_order_of_events_in_a_file_means_nothing(self):
        for name, history, expected in cases():
            with self.subTest(name):
                self.assertEqual({rule for rule, _ in check.check(history[::-1])}, expected)

    def test_what_is_lost_while_a_backend_is_away_is_void(self):
        broken = check.Broken("", 100, 200)
        for begin, end, fault, name, expected in (
            (0, 99, "kill", "alone", False),
            (0, 101, "kill", "alone", True),
            (150, 160, "stop", "once", True),
            (199, 300, "stop", "kept", True),
            (201, 300, "kill", "kept", False),
            (0, 300, "gateway-kill", "alone", False),
            (0, 300, "kill", "refused", False),
            (0, 300, "kill", "whole", False),
        ):
            with self.subTest((begin, end, fault, name)):
                history = [{"kind": "fault", "begin": begin, "end": end, "fault": fault}]
                self.assertEqual(check.is_void(history, name, broken), expected)


if __name__ == "__main__":
    unittest.main()
