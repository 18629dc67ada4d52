"""From measured points to the model of a profile: weighted least squares, no negative terms.

Errors are relative, so a point of 2 ms weighs as much as one of 2 s. A term that would be negative
is noise and is left out. How points are measured is :mod:`anabranch.engines.profile_measure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from anabranch.engines.profile import BurstPoint, Fit, PrefillPoint, Profile, StepPoint
from anabranch.errors import EngineError

Rows = Sequence[tuple[float, ...]]


def least_squares(rows: Rows, values: Sequence[float]) -> list[float]:
    """Coefficients ≥ 0 of ``rows · x ≈ values`` with the smallest relative errors.

    Terms that come out negative are set to 0, the worst first, and the rest is fitted again.
    """
    kept = list(range(len(rows[0])))
    while kept:
        scaled = [[row[k] / value for k in kept] for row, value in zip(rows, values, strict=True)]
        found = _solve(scaled)
        if found is None:
            kept.pop()
            continue
        worst = min(range(len(kept)), key=lambda i: found[i])
        if found[worst] >= 0:
            result = [0.0] * len(rows[0])
            for place, number in enumerate(kept):
                result[number] = found[place]
            return result
        del kept[worst]
    return [0.0] * len(rows[0])


def fit(
    prefill: Sequence[PrefillPoint], steps: Sequence[StepPoint], bursts: Sequence[BurstPoint]
) -> Profile:
    """The model of an engine from its points.

    Raises:
        EngineError: there are too few of them.
    """
    if len(prefill) < 2 or len(steps) < 2:
        raise EngineError(
            f"{len(prefill)} prompt lengths and {len(steps)} batches could be measured: a profile "
            "needs at least two of each"
        )
    times = [median(point.seconds) for point in steps]
    base, sequence, context = least_squares([(1.0, p.batch, p.context) for p in steps], times)
    cold = [median(point.seconds) for point in prefill]
    ahead, per_token = least_squares([(1.0, p.tokens) for p in prefill], cold)
    serial = 0.0
    if len(bursts) > 1:
        ends = [median(point.seconds) for point in bursts]
        _, slope = least_squares([(1.0, p.calls) for p in bursts], ends)
        # What more calls at once add inside the engine's steps is no matter of the front end.
        inside = sequence + per_token * median(p.tokens for p in bursts)
        serial = max(0.0, slope - inside)
    profile = Profile(
        base=base,
        sequence=sequence,
        context=context,
        prefill=max(0.0, per_token - context),
        serial=serial,
        latency=max(0.0, ahead - base - sequence - serial),
        knee=_knee(base, sequence, steps),
        prefill_points=tuple(prefill),
        step_points=tuple(steps),
        burst_points=tuple(bursts),
    )
    return profile.model_copy(update={"fits": fits(profile)})


def predicted_prefill(profile: Profile, tokens: int) -> float:
    """Seconds of a lone cold call of one token."""
    return profile.latency + profile.serial + profile.step(1, tokens, tokens)


def predicted_burst(profile: Profile, point: BurstPoint) -> float:
    """Seconds until the last of several calls at once is in, when its step begins on arrival."""
    step = profile.step(point.calls, 0, point.calls * point.tokens)
    return profile.latency + profile.serial * point.calls + step


def fits(profile: Profile) -> dict[str, Fit]:
    """Residuals of the model at its own points."""
    pairs = {
        "prefill": [
            (predicted_prefill(profile, p.tokens), median(p.seconds))
            for p in profile.prefill_points
        ],
        "step": [
            (profile.step(p.batch, p.context), median(p.seconds)) for p in profile.step_points
        ],
        "burst": [(predicted_burst(profile, p), median(p.seconds)) for p in profile.burst_points],
    }
    found = {}
    for name, points in pairs.items():
        if points:
            errors = [abs(model / seen - 1) for model, seen in points]
            found[name] = Fit(
                points=len(points),
                median_error=round(median(errors), 4),
                worst_error=round(max(errors), 4),
            )
    return found


def _knee(base: float, sequence: float, steps: Sequence[StepPoint]) -> int | None:
    """The batch whose step takes twice that of one, where it lies within what was measured."""
    if sequence <= 0:
        return None
    knee = int((2 * (base + sequence) - base) / sequence)
    return knee if knee <= max(point.batch for point in steps) else None


def _solve(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """``x`` with ``rows · x ≈ 1``, by the normal equations; None where they are singular."""
    size = len(rows[0])
    scale = [max(abs(row[k]) for row in rows) or 1.0 for k in range(size)]
    unit = [[row[k] / scale[k] for k in range(size)] for row in rows]
    matrix = [
        [sum(row[i] * row[j] for row in unit) for j in range(size)] + [sum(row[i] for row in unit)]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        if abs(matrix[pivot][i]) < 1e-12:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for r in range(size):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]
