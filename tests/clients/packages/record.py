"""How each test of a package ended, written as JSON to the file that RECORD names.

A plugin of pytest, and a test runner for Django's settings. Both leave out what
NOT_RUN lists, a JSON array of names, and write down which of those there are.
"""

import json
import os

RANK = ("skipped", "passed", "failed")


class Record:
    def __init__(self):
        self.not_run = set(json.loads(os.environ["NOT_RUN"]))
        self.unrun = []
        self.ended = {}
        self.words = {}

    def is_wanted(self, name):
        if name in self.not_run:
            self.unrun.append(name)
            return False
        return True

    def end(self, name, how, words=""):
        """The worst counts: a test may end more than once (set-up, subtests)."""
        if RANK.index(how) >= RANK.index(self.ended.get(name, "skipped")):
            self.ended[name] = how
            self.words[name] = words

    def write(self):
        failed = {name: self.words[name] for name, how in self.ended.items() if how == "failed"}
        with open(os.environ["RECORD"], "w") as file:
            json.dump({"ended": self.ended, "unrun": self.unrun, "failed": failed}, file)


RECORD = Record()


# pytest's hooks.


def short(item):
    return item.removeprefix("tests/")


def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if RECORD.is_wanted(short(item.nodeid))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_runtest_logreport(report):
    name = short(report.nodeid)
    if report.failed:
        # The last line of what went wrong is the error itself.
        lines = [line for line in report.longreprtext.splitlines() if line.strip()]
        RECORD.end(name, "failed", lines[-1].strip() if lines else "without a word")
    elif report.skipped:
        RECORD.end(name, "skipped")
    elif report.when == "call":
        RECORD.end(name, "passed")


def pytest_sessionfinish():
    RECORD.write()


# Django's.


def django_runner():
    """Made when it is asked for: pytest has no Django."""
    import unittest

    from django.test.runner import DiscoverRunner

    class Result(unittest.TextTestResult):
        def addSuccess(self, test):
            super().addSuccess(test)
            RECORD.end(test.id(), "passed")

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            RECORD.end(test.id(), "skipped")

        def addFailure(self, test, error):
            super().addFailure(test, error)
            RECORD.end(test.id(), "failed", str(error[1]))

        def addError(self, test, error):
            super().addError(test, error)
            RECORD.end(test.id(), "failed", str(error[1]))

        def addSubTest(self, test, subtest, error):
            super().addSubTest(test, subtest, error)
            if error:
                RECORD.end(test.id(), "failed", str(error[1]))

    class Runner(DiscoverRunner):
        def get_resultclass(self):
            return Result

        def build_suite(self, *arguments, **named):
            suite = super().build_suite(*arguments, **named)
            return type(suite)([test for test in suite if RECORD.is_wanted(test.id())])

        def suite_result(self, suite, result, **named):
            RECORD.write()
            return super().suite_result(suite, result, **named)

    return Runner


def __getattr__(name):
    if name == "DjangoRunner":
        return django_runner()
    raise AttributeError(name)
