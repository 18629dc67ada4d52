"""Checks of parallel samples: pure functions from a sample to findings with offsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.curation.checks.content import (
    answer_first,
    leaks,
    near_duplicates,
    outlines_reveal,
)
from anabranch.curation.checks.findings import KINDS, Finding, Sample
from anabranch.curation.checks.whole import (
    EvaluationSets,
    answer_findings,
    contamination,
    evaluation_sets,
    format_findings,
    lost_text,
)

__all__ = ["KINDS", "Checks", "EvaluationSets", "Finding", "Sample", "evaluation_sets"]


@dataclass(frozen=True, slots=True)
class Checks:
    """All checks with their settings.

    Attributes:
        survived: the least share of the source that must be in the text; 0 turns that off.
        against: files of evaluation problems.
    """

    survived: float = 0.8
    against: tuple[str, ...] = ()

    def run(self, sample: Sample) -> list[Finding]:
        """Everything that is found, by place.

        Raises:
            RecordError: a file of evaluation problems cannot be read.
        """
        found: list[Iterable[Finding]] = [
            format_findings(sample),
            leaks(sample),
            answer_first(sample),
            near_duplicates(sample),
            outlines_reveal(sample),
            answer_findings(sample),
        ]
        if self.survived:
            found.append(lost_text(sample, self.survived))
        if self.against:
            found.append(contamination(sample, evaluation_sets(self.against)))
        every = [finding for findings in found for finding in findings]
        return sorted(every, key=lambda finding: (finding.start, finding.kind))
