from __future__ import annotations

import json

import pytest

from kvsan.findings import Report
from kvsan.reporters import json_report
from kvsan.serialize import report_from_dict

from . import samples


def test_the_document_has_every_field() -> None:
    document = json.loads(json_report.render(samples.REPORT))
    keys = {"findings", "totals", "failures", "notes", "suppressed", "processes", "exit"}
    assert keys <= document.keys()
    race = document["findings"][0]
    assert (race["kind"], race["at"], race["pool"], race["slots"], race["owner"], race["object"]) == (
        "race", 3412, "req_to_token", [1], "b7", "req_to_token:1",
    )  # fmt: skip
    assert race["earlier"]["stack"][0] == {
        "file": "reference_engine/forward.py",
        "line": 52,
        "function": "capture_rows",
    }
    assert document["totals"][0]["findings"] == {"leak": 1, "race": 1}


@pytest.mark.parametrize("report", [samples.REPORT, samples.TROUBLED, samples.CLEAN, Report()])
def test_it_reads_back(report: Report) -> None:
    assert report_from_dict(json.loads(json_report.render(report))) == report


def test_exit() -> None:
    assert json.loads(json_report.render(samples.REPORT))["exit"] == 88
    assert json.loads(json_report.render(samples.CLEAN))["exit"] == 0
    assert json.loads(json_report.render(samples.REPORT, exit_status=3))["exit"] == 3


def test_a_line_for_every_finding_and_pool() -> None:
    lines = json_report.render(samples.REPORT).splitlines()
    assert sum(line.startswith('  {"kind": ') for line in lines) == 2
    assert sum(line.startswith('  {"pool": ') for line in lines) == 2
