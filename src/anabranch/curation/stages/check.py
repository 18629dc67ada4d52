"""Drops rows whose parallel text has findings of the kinds that are not allowed."""

from __future__ import annotations

from dataclasses import asdict
from typing import ClassVar

from pydantic import field_validator

from anabranch.annotation.traces import read_trace
from anabranch.curation.checks import KINDS, Checks, Sample
from anabranch.curation.rows import Row
from anabranch.curation.stage import Drop, Keep, Result, Stage
from anabranch.dialects import get_dialect


class Check(Stage):
    """The stage ``check``: ``{"findings": [finding]}`` of rows that pass.

    Attributes:
        allow: kinds of findings that are noted and no reason to drop a row.
        survived, against: as in :class:`anabranch.curation.checks.Checks`.
    """

    name: ClassVar[str] = "check"

    allow: tuple[str, ...] = ()
    survived: float = 0.8
    against: tuple[str, ...] = ()

    @field_validator("allow")
    @classmethod
    def _are_kinds(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(value) - set(KINDS))
        if unknown:
            raise ValueError(f"no finding is called {unknown[0]!r}; known: {', '.join(KINDS)}")
        return value

    def work(self, row: Row) -> Result:
        """Checks the rendered text; the first finding that is not allowed is the reason."""
        made = row.parallel
        if made is None:
            return Drop("nothing_to_check", "no stage has written a parallel text")
        sample = Sample(
            made["text"],
            get_dialect(made["dialect"]),
            row.problem,
            row.answer,
            None if "cold_start" in row.data else read_trace(row.trace).thought,
        )
        findings = Checks(self.survived, self.against).run(sample)
        for finding in findings:
            if finding.kind not in self.allow:
                return Drop(finding.kind, finding.message)
        return Keep({"findings": [asdict(finding) for finding in findings]})
