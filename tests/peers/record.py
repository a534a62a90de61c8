#!/usr/bin/python3
"""Run rdma-core's run_tests.py and write one line a test: its name, result and reason, as JSON.

    record.py FOLDER FILE LIMIT ADDRESS ARGUMENT...

FOLDER holds the suite, unpacked; FILE gets the lines; LIMIT is the seconds that one test may take; ADDRESS is the
device's, as the suite asks the kernel for that of an interface, and it has none; the rest is run_tests.py's. Every test has two lines, one when it begins: a test whose end is missing has hung or crashed.
"""
import json
import pathlib
import runpy
import signal
import sys
import unittest

folder, file, limit = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
lines = open(file, "w", buffering=1)


class TimeUp(BaseException):
    """Not an Exception, so that no test swallows it."""


def on_alarm(_signal, _frame):
    raise TimeUp


def say(test, result, reason=""):
    name = test.id().removeprefix("tests.")
    print(json.dumps({"test": name, "result": result, "reason": reason}), file=lines)


def last_line(error):
    return " ".join(f"{error[0].__name__}: {error[1]}".split())


class Recorder(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        say(test, "begun")
        signal.alarm(limit)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)

    def addSuccess(self, test):
        super().addSuccess(test)
        say(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        say(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        say(test, "FAIL", last_line(err))

    def addError(self, test, err):
        super().addError(test, err)
        say(test, "ERROR", last_line(err))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            say(test, "FAIL", last_line(err))

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        say(test, "FAIL", "a success that the suite does not expect")

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        say(test, "ok", "an expected failure")


signal.signal(signal.SIGALRM, on_alarm)
unittest.TextTestRunner.resultclass = Recorder
sys.path.insert(0, str(folder))
address = sys.argv[4]
sys.argv = [str(folder / "run_tests.py"), *sys.argv[5:]]
sys.path.insert(0, str(folder.parent))
import tests.base  # noqa: E402: of the suite

tests.base.RDMATestCase.get_ip_mac_address = staticmethod(lambda _interface: (address, "02:00:00:00:00:01"))
runpy.run_path(sys.argv[0], run_name="__main__")
