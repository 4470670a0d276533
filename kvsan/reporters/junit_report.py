"""The report as JUnit's XML, which CI servers show: a failed test for each finding.

What kvsan itself failed at is an error, what was not watched a skipped test. XML knows no control characters, not even
escaped; everything in here is printable (`escape`), but paths are made so once more.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from kvsan.findings import Report
from kvsan.reporters import finding, totals
from kvsan.reporters.escape import PROSE_LIMIT, visible
from kvsan.reporters.page import Page
from kvsan.reporters.places import Places
from kvsan.reporters.terminal import PIPE_WIDTH
from kvsan.reporters.text import GLUE

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report, *, root: str = "", exit_status: int | None = None) -> str:
    """The document; each test case has the text of its finding as on a terminal of 100 columns."""
    places = Places.of(report, root)
    suite = Element("testsuite", name="kvsan")
    for number, each in enumerate(report.findings, 1):
        page = Page(PIPE_WIDTH, terminal=False)
        finding.draw(page, each, places, number, len(report.findings))
        summary = finding.summary(each, places).replace(GLUE, " ")
        case = SubElement(suite, "testcase", classname=f"kvsan.{visible(each.kind)}", name=summary)
        failure = SubElement(case, "failure", type=visible(each.kind), message=summary)
        failure.text = page.text()
    for failed in report.failures:
        case = SubElement(suite, "testcase", classname="kvsan", name=f"kvsan at {visible(failed.where)}")
        message = f"{visible(failed.error, PROSE_LIMIT)}; {visible(failed.cost, PROSE_LIMIT)}"
        SubElement(case, "error", type="failure of kvsan", message=message)
    whole = SubElement(suite, "testcase", classname="kvsan", name="everything was watched")
    lacking = bool(report.failures) or not report.complete
    if lacking:
        SubElement(whole, "skipped", message=" ".join(visible(note, PROSE_LIMIT) for note in report.notes))
    counts = {
        "tests": len(suite), "failures": len(report.findings), "errors": len(report.failures),
        "skipped": int(lacking),
    }  # fmt: skip
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    page = Page(PIPE_WIDTH, terminal=False)
    totals.totals(page, report)
    page.blank()
    totals.notes(page, report)
    totals.closing(page, report, exit_status)
    SubElement(suite, "system-out").text = page.text()
    suites = Element("testsuites", suite.attrib)
    suites.append(suite)
    for element in suites.iter():
        element.text = element.text and _NOT_XML.sub(_escaped, element.text)
        element.attrib.update({name: _NOT_XML.sub(_escaped, value) for name, value in element.attrib.items()})
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
