#!/usr/bin/env python3
"""Counts tests in the records that meson and pytest leave.

usage: count_tests.py meson BUILD/meson-logs/testlog.json
       count_tests.py junit FILE.xml

Prints "PASSED FAILED SKIPPED"; what failed goes to standard error. In a meson test that is a cmocka program each
of its tests counts; any other counts once. A program that fails without naming a failed test (a crash, a
sanitizer's finding, a timeout) counts as one failure.
"""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree


def count_meson(path):
    passed = failed = skipped = 0
    with open(path, encoding="utf-8", errors="replace") as f:
        for line in f:
            test = json.loads(line)
            output = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
            numbers = {}
            for word in ("PASSED", "FAILED", "SKIPPED"):
                found = re.findall(r"^\[  ?%s *\] (\d+) test\(s\)" % word, output, re.M)
                numbers[word] = sum(map(int, found))
            ok, skip = test["result"] in ("OK", "EXPECTEDFAIL"), test["result"] == "SKIP"
            if "[==========]" not in output:  # not cmocka's
                passed, failed, skipped = passed + ok, failed + (not ok and not skip), skipped + skip
            else:
                passed += numbers["PASSED"]
                failed += max(numbers["FAILED"], int(not ok and not skip))
                skipped += numbers["SKIPPED"]
            if not ok and not skip:
                names = re.findall(r"^\[  FAILED  \] (?!\d+ test)(\S+)", output, re.M)
                print(f"failed: {test['name']} ({test['result']}) {' '.join(sorted(set(names)))}", file=sys.stderr)
    return passed, failed, skipped


def count_junit(path):
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
            print(f"failed: {case.get('classname')}::{case.get('name')}", file=sys.stderr)
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("meson", "junit"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    print(*(count_meson if sys.argv[1] == "meson" else count_junit)(sys.argv[2]))
