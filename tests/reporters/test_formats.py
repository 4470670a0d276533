"""The formats for other programs: SARIF, JUnit's XML, and HTML."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from kvsan.findings import Access, Finding, Frame, Report
from kvsan.reporters.formats import FORMATS, format_of, renderer

from . import samples
from .test_escape import HOSTILE, hostile

VOID = {"meta"}
URI = re.compile(r"(file:///)?([A-Za-z0-9_.~/-]|%[0-9A-F]{2})+")
HOSTILE_HERE = {**HOSTILE, "tags": "</pre><script>alert(1)</script>&amp;<b>", "cdata": "]]>\x01\ufffe"}


def sarif(report: Report, **more: Any) -> dict[str, Any]:
    document = json.loads(renderer("sarif")(report, **more))
    assert (document["version"], len(document["runs"])) == ("2.1.0", 1)
    return dict(document["runs"][0])


def junit(report: Report, **more: Any) -> ElementTree.Element:
    return ElementTree.fromstring(renderer("junit")(report, **more))


class Parsed(HTMLParser):
    """A document's tags, ids and text; fails where tags do not close as they opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.words = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_endings() -> None:
    found = [format_of(f"a/b{ending}") for ending in (".json", ".sarif", ".xml", ".html", ".txt", "", ".JSON")]
    assert found == ["json", "sarif", "junit", "html", None, None, "json"]


def test_sarif_says_where_and_what() -> None:
    run = sarif(samples.REPORT, root="/work", exit_status=88)
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["race", "leak"]
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": [], "exitCode": 88}]
    race, leak = run["results"]
    assert (race["ruleId"], race["ruleIndex"], race["level"], race["occurrenceCount"]) == ("race", 0, "error", 3)
    assert race["partialFingerprints"] == {"kvsanToken/v1": samples.RACE.token}
    assert race["message"]["text"].startswith(
        "Race on req_to_token row 1 (allocation.py:88 write_cache_indices vs forward.py:52 capture_rows). "
        '"a3" gave its row back while'
    )
    (place,) = race["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "reference_engine/allocation.py"},
        "region": {"startLine": 88},
    }
    assert place["logicalLocations"] == [{"fullyQualifiedName": "write_cache_indices"}]
    assert [each["message"]["text"] for each in race["relatedLocations"]] == [
        "read by a3, event 3377",
        "alloc by a3, event 3301",
        "free by a3, event 3398",
        "alloc by b7, event 3401",
    ]
    stacks = {stack["message"]["text"]: stack["frames"] for stack in race["stacks"]}
    assert [len(frames) for frames in stacks.values()] == [3, 2]
    assert (leak["ruleId"], leak["ruleIndex"]) == ("leak", 1)


@pytest.mark.parametrize(
    ("file", "artifact"),
    [
        ("/work/a b/c.py", {"uri": "a%20b/c.py", "uriBaseId": "SRCROOT"}),
        ("/other/é.py", {"uri": "file:///other/%C3%A9.py"}),
        ("here.py", {"uri": "here.py"}),
        ("/work", {"uri": ".", "uriBaseId": "SRCROOT"}),
    ],
)
def test_sarif_paths(file: str, artifact: dict[str, str]) -> None:
    finding = Finding("leak", 1, "kv:1", present=Access("end", 1, stack=(Frame(file, 7, "f"),)))
    run = sarif(Report(findings=(finding,)), root="/work")
    assert run["originalUriBaseIds"] == {"SRCROOT": {"uri": "file:///work/"}}
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"] == artifact


def test_sarif_of_a_trace_has_the_places_that_it_names() -> None:
    here, there = Access("free", 3, site="/work/a b.py:7 Pool.free"), Access("alloc", 1, site="io_loop")
    (result,) = sarif(Report(findings=(Finding("leak", 3, "kv:1", present=here, earlier=there),)))["results"]
    (place,) = result["locations"]
    assert place["logicalLocations"] == [{"fullyQualifiedName": "Pool.free"}]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "file:///work/a%20b.py"}
    assert place["physicalLocation"]["region"] == {"startLine": 7}
    assert (len(result["stacks"]), result["relatedLocations"]) == (1, [])


def test_sarif_in_the_root_folder() -> None:
    finding = Finding("leak", 1, "kv:1", present=Access("end", 1, stack=(Frame("/app/x.py", 7, "f"),)))
    run = sarif(Report(findings=(finding,)), root="/")
    assert run["originalUriBaseIds"]["SRCROOT"] == {"uri": "file:///"}
    artifact = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "app/x.py", "uriBaseId": "SRCROOT"}


def test_sarif_of_what_is_hardly_known() -> None:
    frames = (Frame("<string>", 1, "<module>"),)
    finding = Finding("own_kind", 1, "", severity="warning", present=Access("free", 1, stack=frames))
    run = sarif(Report(findings=(finding, replace(finding, present=None))))
    assert "originalUriBaseIds" not in run
    assert [len(each["locations"]) for each in run["results"]] == [1, 0]
    assert "physicalLocation" not in run["results"][0]["locations"][0]
    assert [each["level"] for each in run["results"]] == ["warning"] * 2
    (rule,) = run["tool"]["driver"]["rules"]
    assert set(rule) == {"id", "help"}


def test_sarif_names_a_place_once() -> None:
    event = Access("alloc", 1, owner="a", stack=(Frame("x.py", 2, "f"),))
    finding = Finding("double_free", 3, "kv:1", earlier=event, provenance=(event, replace(event, at=2)))
    (result,) = sarif(Report(findings=(finding,)))["results"]
    assert [each["message"]["text"] for each in result["relatedLocations"]] == [
        "alloc by a, event 1",
        "alloc by a, event 2",
    ]


def test_sarif_tells_failures_and_notes() -> None:
    (invocation,) = sarif(samples.TROUBLED)["invocations"]
    assert not invocation["executionSuccessful"]
    assert [each["level"] for each in invocation["toolExecutionNotifications"]] == ["note", "error"]
    assert "KeyError: 'node-12'" in invocation["toolExecutionNotifications"][1]["message"]["text"]


def test_junit_has_a_failed_test_for_each_finding() -> None:
    suites = junit(samples.REPORT, exit_status=88)
    (suite,) = suites
    wanted = {"name": "kvsan", "tests": "3", "failures": "2", "errors": "0", "skipped": "0"}
    assert suites.attrib == suite.attrib == wanted
    race, leak, whole = suite.findall("testcase")
    assert (race.attrib["classname"], leak.attrib["classname"]) == ("kvsan.race", "kvsan.leak")
    assert race.attrib["name"].startswith("race on req_to_token row 1 (allocation.py:88 write_cache_indices vs ")
    (failure,) = race
    assert failure.attrib == {"type": "race", "message": race.attrib["name"]}
    assert "is not ordered after" in (failure.text or "")
    assert [*whole] == []
    assert (suite.findtext("system-out") or "").rstrip().endswith("in 1 of 3 processes. Exit status 88.")


@pytest.mark.parametrize(
    ("report", "counts"),
    [
        (Report(), ("1", "0", "0", "0")),
        (samples.TROUBLED, ("3", "1", "1", "1")),
        (Report(complete=False, notes=("half of it was watched",)), ("1", "0", "0", "1")),
    ],
)
def test_junit_counts(report: Report, counts: tuple[str, ...]) -> None:
    (suite,) = junit(report)
    assert tuple(suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")) == counts
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert len(suite.findall(f"testcase/{tag}")) == int(suite.attrib[name])
    (whole,) = (case for case in suite.findall("testcase") if case.attrib["name"] == "everything was watched")
    lacks = whole.find("skipped")
    if report.notes:
        assert lacks is not None and report.notes[0] in lacks.attrib["message"]


def test_html_shows_every_finding() -> None:
    text = renderer("html")(samples.REPORT, exit_status=88)
    page = Parsed(text)
    assert (page.tags["details"], page.tags["script"]) == (2, 0)
    assert text.count("<details") == 2 and text.count(" open>") == 1
    assert "kvsan: 2 findings" in page.words
    assert "Exit status 88." in page.words
    assert "is not ordered after" in page.words
    assert "seen 3 times" in page.words
    assert "follows from this" in page.words
    assert "http" not in text.replace("http-equiv", "")


def test_html_without_findings() -> None:
    page = Parsed(renderer("html")(samples.CLEAN))
    assert page.tags["details"] == 0
    assert "Findings" not in page.words
    assert "no findings" in page.words


@pytest.mark.parametrize("name", HOSTILE_HERE.values(), ids=HOSTILE_HERE.keys())
@pytest.mark.parametrize("format", FORMATS)
def test_hostile_names_do_nothing(format: str, name: str) -> None:
    text = renderer(format)(hostile(name), root="/work", exit_status=88)
    text.encode("utf-8")
    assert not set("\x1b\x07\x9b\0\x08\x01\u202e\u2066\u200b\u2028\ufffe") & set(text)
    if format == "html":
        page = Parsed(text)
        assert (page.tags["script"], page.tags["b"], page.tags["details"]) == (0, 5, 4)
    elif format == "junit":
        suites = ElementTree.fromstring(text)
        assert suites.attrib["failures"] == "4"
        assert {element.tag for element in suites.iter()} <= {
            "testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out",
        }  # fmt: skip
    elif format == "sarif":
        (run,) = json.loads(text)["runs"]
        rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
        for result in run["results"]:
            assert rules[result["ruleIndex"]] == result["ruleId"]
            places = [*result["locations"], *result["relatedLocations"]]
            assert len({json.dumps(place) for place in result["relatedLocations"]}) == len(result["relatedLocations"])
            for place in places:
                if "physicalLocation" in place:
                    assert URI.fullmatch(place["physicalLocation"]["artifactLocation"]["uri"])
    else:
        json.loads(text)
