"""How checks are run and counted: what the tests of the SDKs have in common.

Each function `check_*` of a test is a check. One whose first argument is called `case` runs once for each kind of engine;
after it the engines must be at rest, all KV blocks free, and no hand-off wrong. Another one gets the path of the binary
and a demo, and runs once.
"""

import argparse
import contextlib
import os
import sys
import time
import traceback

from cluster import Demo


def strands(check):
    """The check makes decode engines fail, so that KV may stay where it is until its lease ends."""
    check.strands = True
    return check


@contextlib.contextmanager
def started(what):
    try:
        yield what
    finally:
        what.stop()


class Tally:
    def __init__(self, names):
        self.names, self.passed, self.failed = names, 0, 0

    def wants(self, check):
        return not self.names or any(name in check.__name__ for name in self.names)

    def run(self, title, check):
        begun = time.monotonic()
        try:
            check()
        except Exception:
            self.failed += 1
            print(f"FAILED {title}\n{traceback.format_exc()}", flush=True)
        else:
            self.passed += 1
            print(f"ok     {title} ({(time.monotonic() - begun) * 1000:.0f} ms)", flush=True)


def and_at_rest(check, case):
    """The check, and then: nothing left over in any engine."""
    try:
        check(case)
        case.demo.disarm()
        stats = case.demo.rest(leases=not hasattr(check, "strands"))
        handoffs = stats["handoffs"]
        assert handoffs["wrong"] == handoffs["reused"] == stats["deaths"] == 0, stats
    finally:
        case.demo.disarm()
        case.demo.strand()


def stops(demo):
    status = demo.stop()
    assert status == 0, f"status {status}:\n{demo.output()}"


def run(title, found, case_of):
    """Runs the checks among the names `found`; `case_of` makes what a check of an engine gets."""
    parser = argparse.ArgumentParser(description=title.splitlines()[0])
    parser.add_argument("--baton", required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    baton = os.path.abspath(args.baton)
    checks = [check for name, check in found.items() if name.startswith("check_")]
    each = [check for check in checks if check.__code__.co_varnames[0] == "case"]
    once = [check for check in checks if check not in each]

    tally = Tally(args.names)
    for engine in ("vllm", "sglang"):
        demo = Demo(baton, engine)
        try:
            case = case_of(demo)
            for check in filter(tally.wants, each):
                tally.run(f"{engine}: {check.__name__[6:]}", lambda: and_at_rest(check, case))
            for check in filter(tally.wants, once if engine == "vllm" else ()):
                tally.run(check.__name__[6:], lambda: check(baton, demo))
            tally.run(f"{engine}: the demo ends with status 0", lambda: stops(demo))
        finally:
            demo.stop()
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)
